"""Where the live page is served, and which models it shows."""

from dataclasses import dataclass, field

from normscope.config.rules import each, rule

LOCAL = ("127.0.0.1", "localhost", "::1")
"""Hosts that only this machine reaches."""


_PORT = rule("a port from 0 to 65535", lambda port: 0 <= port <= 65535, (-1, 65536, 2**31))


@dataclass
class LiveOptions:
    """The live page of `normscope serve`."""

    host: str = "127.0.0.1"
    """Address to listen on: `0.0.0.0` for every one of this machine. Whatever it is, the page opens only with the token in the
    address that is printed."""
    port: int = field(default=8765, metadata=_PORT)
    """Port to listen on; 0 takes any free one."""
    models: list[str] = field(
        default_factory=list, metadata=each(rule("a model", lambda name: bool(name.strip()), (" ",), repr))
    )
    """More models to compare with, by Hub name or local folder; with `model.checkpoints`, all checkpoints."""
