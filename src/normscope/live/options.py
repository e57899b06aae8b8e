"""Where the live page is served, and which models it shows."""

from dataclasses import dataclass, field
from typing import Annotated

from pydantic import Field

from normscope.config.rules import Options

LOCAL = ("127.0.0.1", "localhost", "::1")
"""Hosts that only this machine reaches."""


@dataclass
class LiveOptions(Options):
    """The live page of `normscope serve`."""

    host: str = "127.0.0.1"
    """Address to listen on: `0.0.0.0` for every one of this machine. Whatever it is, the page opens only with the token in the
    address that is printed."""
    port: Annotated[int, Field(ge=0, le=65535)] = 8765
    """Port to listen on; 0 takes any free one."""
    models: list[str] = field(default_factory=list)
    """More models to compare with, by Hub name or local folder; with `model.checkpoints`, all checkpoints."""
