"""A server of one page: where it listens, its address, and how it is stopped."""

import asyncio
import contextlib
import errno
import functools
import importlib
import socket
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from normscope.errors import InputError, one_line, printable
from normscope.live.access import Access
from normscope.live.session import Session

BACKLOG = 100
"""Connections that are accepted in one turn of the event loop, even beyond the most that stay open."""
_LAST_SECONDS = 0.5
"""How long answers that are being sent may take when the server stops."""
_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
"""Errors of a system that has no place for another connection."""


class LiveServer(Protocol):
    """What serves a page."""

    async def serve(self, sockets: list[socket.socket]) -> None:
        """Answer requests until `stop` is called."""

    def stop(self) -> None:
        """Answer nothing more."""


def bound(host: str, port: int, key: str = "live.port") -> socket.socket:
    """A socket that listens.

    Args:
        key: What sets the port, for the error message.

    Raises:
        InputError: If the address is invalid, another machine's, or in use.
    """
    try:
        family, kind, protocol, _, where = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listening = socket.socket(family, kind, protocol)
    except (OSError, ValueError) as error:  # a label that is empty or too long is a UnicodeError, a NUL a ValueError
        raise InputError(f"live.host={printable(host, 80)}: cannot be resolved: {one_line(error)}") from error
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(where)
        listening.listen(BACKLOG)
    except OSError as error:
        listening.close()
        if error.errno == errno.EADDRNOTAVAIL:
            raise InputError(
                f"live.host={host}: expected an address of this machine, such as 127.0.0.1 or 0.0.0.0: {one_line(error)}"
            ) from error
        raise InputError(
            f"{key}={port}: cannot listen on {host}: {one_line(error)}; set {key} to another number, or to 0 for any "
            "free port"
        ) from error
    return listening


def address(listening: socket.socket, host: str, token: str) -> str:
    """The address of the page; where the server listens on every address, that of this machine by its name."""
    name = socket.gethostname() if host in ("0.0.0.0", "::") else host
    shown = f"[{name}]" if ":" in name else name
    return f"http://{shown}:{listening.getsockname()[1]}/?token={token}"


def server_of(session: Session, access: Access) -> LiveServer:
    """A server of a page, which is not started yet.

    Args:
        session: What is served.
        access: Who may ask.
    """
    import uvicorn

    from normscope.live.connections import Connection
    from normscope.live.server import app

    def crowded() -> None:
        session.report_once("crowd", "more connections than the page needs are open; the oldest are closed")

    def note(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if isinstance(error, OSError) and error.errno in _EXHAUSTED:  # asyncio tries again after a second
            session.report_once("exhausted", f"cannot accept connections: {one_line(error)}")
        else:
            loop.default_exception_handler(context)

    class Server(uvicorn.Server):
        """A server that leaves signals to its caller, and waits for nobody when it stops."""

        async def serve(self, sockets: list[socket.socket] | None = None) -> None:
            asyncio.get_running_loop().set_exception_handler(note)
            await super().serve(sockets)

        @contextlib.contextmanager
        def capture_signals(self) -> Iterator[None]:
            yield

        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            self._abort(lambda connection: not connection.is_answering)
            asyncio.get_running_loop().call_later(_LAST_SECONDS, self._abort)
            await asyncio.sleep(0)  # in which those are closed
            await super().shutdown(sockets)

        def _abort(self, which: Callable[[Connection], bool] = lambda _: True) -> None:
            for connection in [*self.server_state.connections]:
                if isinstance(connection, Connection) and which(connection):
                    connection.abort()

        def stop(self) -> None:
            """Answer nothing more."""
            session.engine.close(0)
            self.should_exit = True

    return Server(
        uvicorn.Config(
            app(session, access),
            http=functools.partial(Connection, on_crowd=crowded),  # type: ignore[arg-type]
            ws="none",
            lifespan="off",
            loop="asyncio",
            log_level="error",  # a stranger can cause as many warnings as they like
            access_log=False,
            server_header=False,
            proxy_headers=False,
            backlog=BACKLOG,
            timeout_graceful_shutdown=1,
        )
    )


def require_extra(caller: str) -> None:
    """Check that what serves the page is installed.

    Args:
        caller: What needs it, for the error message.

    Raises:
        InputError: If it is not.
    """
    for name in ("starlette", "uvicorn"):
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as error:
            raise InputError(f"{caller}: {name} is not installed; run `pip install starlette uvicorn`") from error
