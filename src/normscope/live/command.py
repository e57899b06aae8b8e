"""`normscope serve`: loads the models, prints the address of the page, and serves it until it is interrupted."""

import asyncio
import atexit
import contextlib
import dataclasses
import importlib
import os
import secrets
import signal
import socket
import sys
from collections.abc import Iterator
from typing import Protocol

from normscope.errors import InputError, one_line
from normscope.live.options import LOCAL
from normscope.live.session import Session
from normscope.live.snippets import source_of
from normscope.models.loading import load
from normscope.running.options import RunOptions

_GRACE = 0.5
"""Seconds that a running computation gets when the server stops."""


class LiveServer(Protocol):
    """What serves a page."""

    async def serve(self, sockets: list[socket.socket]) -> None:
        """Answer requests until `stop` is called."""

    def stop(self) -> None:
        """Answer nothing more."""


def serve(options: RunOptions) -> None:
    """Serve the live page until the process is interrupted.

    Args:
        options: The models, the device, the corpus of the examples, `live` and `report.tokens`; everything else is ignored.

    Raises:
        InputError: If the extra `live` is not installed, the port is in use, or a model cannot be observed.
    """
    _require_extra()
    listening = bound(options.live.host, options.live.port)
    token = None if options.live.host in LOCAL else secrets.token_urlsafe(16)
    with contextlib.closing(listening):
        session = _session(options)
        asyncio.run(_until_stopped(session, listening, address(listening, options.live.host, token), token))
        session.engine.close(_GRACE)
    _leave()


def _leave() -> None:
    """End the process at once: the interpreter takes seconds to take torch apart, and a computation may still be running."""
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def bound(host: str, port: int) -> socket.socket:
    """A socket that listens.

    Raises:
        InputError: If the address is invalid or in use.
    """
    try:
        family, kind, protocol, _, where = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listening = socket.socket(family, kind, protocol)
    except OSError as error:
        raise InputError(f"live.host={host}: cannot be resolved: {one_line(error)}") from error
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(where)
        listening.listen(128)
    except OSError as error:
        listening.close()
        raise InputError(
            f"live.port={port}: cannot listen on {host}: {one_line(error)}; set live.port to another one, or to 0 for any "
            "that is free"
        ) from error
    return listening


def address(listening: socket.socket, host: str, token: str | None) -> str:
    """The address of the page; where the server listens on every address, that of this machine by its name."""
    name = socket.gethostname() if host in ("0.0.0.0", "::") else host
    shown = f"[{name}]" if ":" in name else name
    return f"http://{shown}:{listening.getsockname()[1]}/" + (f"?token={token}" if token else "")


async def _until_stopped(session: Session, listening: socket.socket, where: str, token: str | None) -> None:
    """Print the address, and serve until a signal asks to stop."""
    server = server_of(session, token)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, server.stop)
    print(f"normscope live: {where}   (Ctrl-C stops)", flush=True)
    await server.serve(sockets=[listening])


def server_of(session: Session, token: str | None = None) -> "LiveServer":
    """A server of a page, which is not started yet."""
    import uvicorn

    from normscope.live.server import app

    class Server(uvicorn.Server):
        """A server that leaves signals to its caller."""

        @contextlib.contextmanager
        def capture_signals(self) -> Iterator[None]:
            yield

        def stop(self) -> None:
            """Answer nothing more."""
            session.engine.close(0)
            self.should_exit = True

    return Server(
        uvicorn.Config(
            app(session, token),
            http="h11",
            ws="none",
            lifespan="off",
            loop="asyncio",
            log_level="warning",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_graceful_shutdown=1,
        )
    )


def _session(options: RunOptions) -> Session:
    others = [
        dataclasses.replace(options.model, name=name, revision=None, sha256=None, tokenizer=None)
        for name in options.live.models
    ]
    chosen = [options.model, *others]
    models = [load(each, options.device) for each in chosen]
    for model in models:
        _ = model.verification  # made here, so that a model that cannot be observed exactly is refused
        with contextlib.suppress(InputError):  # the page says so where a prediction is attributed
            _ = model.layers_verification
    sources = [source_of(*each, options.device) for each in zip(models, chosen, strict=True)]
    return Session(models, options.report.tokens, sources, options.dataset)


def _require_extra() -> None:
    for name in ("starlette", "uvicorn"):
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as error:
            raise InputError(f"serve: {name} is not installed; run `pip install starlette uvicorn`") from error
