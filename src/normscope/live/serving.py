"""A server of one page: where it listens, its address, and how it is stopped."""

import contextlib
import errno
import importlib
import socket
from collections.abc import Iterator
from typing import Protocol

from normscope.errors import InputError, one_line
from normscope.live.session import Session


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
        InputError: If the address is invalid or in use.
    """
    try:
        family, kind, protocol, _, where = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listening = socket.socket(family, kind, protocol)
    except (OSError, UnicodeError) as error:  # a name with an empty or too long part cannot even be encoded
        raise InputError(f"live.host={host}: cannot be resolved: {one_line(error)}") from error
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(where)
        listening.listen(128)
    except OSError as error:
        listening.close()
        if error.errno == errno.EADDRNOTAVAIL:
            raise InputError(f"live.host={host}: expected an address of this machine: {one_line(error)}") from error
        raise InputError(
            f"{key}={port}: cannot listen on {host}: {one_line(error)}; set {key} to another number, or to 0 for any "
            "free port"
        ) from error
    return listening


def address(listening: socket.socket, host: str, token: str | None) -> str:
    """The address of the page; where the server listens on every address, that of this machine by its name."""
    name = socket.gethostname() if host in ("0.0.0.0", "::") else host
    shown = f"[{name}]" if ":" in name else name
    return f"http://{shown}:{listening.getsockname()[1]}/" + (f"?token={token}" if token else "")


def server_of(session: Session, token: str | None = None, *, framed: bool = False) -> LiveServer:
    """A server of a page, which is not started yet; see `app`."""
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
            app(session, token, framed=framed),
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
