"""Connections of the live page's server: how many there may be, and how long a request may take to arrive.

uvicorn limits only requests whose headers have arrived. Without these limits, a client that never finishes its headers holds a
descriptor for as long as it likes, and nobody has asked it for the token yet.
"""

import asyncio
import contextlib
import errno
import functools
import re
import socket
from collections.abc import Callable, Iterator
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from normscope.errors import one_line
from normscope.live.server import Access, app
from normscope.live.session import Session

MOST = 64
"""Connections at a time. A browser opens six to a server."""
BACKLOG = 100
"""Connections that are accepted in one turn of the event loop; those beyond `MOST` are closed in the next."""
HEADERS_SECONDS = 10.0
"""How long the headers of a request may take, from the connection or the previous answer on."""
BODY_SECONDS = 30.0
"""How long the body may take after the headers."""
ANSWER_SECONDS = 30.0
"""How long a client may leave an answer unread."""
_LAST_SECONDS = 0.5
"""How long answers that are being sent may take when the server stops."""

_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
"""Errors of a system that has no place for another connection."""
_END = re.compile(rb"\r?\n\r?\n")
_HOST = re.compile(rb"\nhost:([^\n]*)", re.IGNORECASE)
_TIDY = re.compile(rb" ?\S+\r?")
"""The value of a `Host` as browsers send it; h11 would strip other white space."""


class Connection(H11Protocol):
    """A connection that is closed if its request takes too long, or if a new one needs its place.

    Of all connections that wait for a request, the oldest makes room: a stranger who opens many closes their own, and keeps
    nobody out. One whose request is being answered stays.
    """

    def __init__(self, *arguments: Any, on_crowd: Callable[[], None], **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self._on_crowd = on_crowd
        self._since = self.loop.time()
        self._deadline: asyncio.TimerHandle | None = None
        """Closes the connection unless a whole request has arrived."""
        self._unread: asyncio.TimerHandle | None = None
        """Closes the connection unless the client reads."""
        self._body_of: object = None
        """The request whose body has a deadline."""
        self._head = b""

    @property
    def is_answering(self) -> bool:
        """Whether a whole request has arrived, and its answer is being computed."""
        cycle = self.cycle
        return cycle is not None and not cycle.more_body and not cycle.response_complete and not self.flow.write_paused

    def abort(self) -> None:
        """Close the connection at once."""
        self.transport.abort()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for a request. If there are too many connections, one is closed."""
        super().connection_made(transport)
        self._expect(HEADERS_SECONDS)
        open_ = [each for each in self.connections if isinstance(each, Connection) and not each.transport.is_closing()]
        if len(open_) > MOST:
            self._on_crowd()
            waiting = [each for each in open_ if not each.is_answering]
            min(waiting, key=lambda each: each._since).abort()

    def data_received(self, data: bytes) -> None:
        """Read a part of a request."""
        if self.conn.their_state is h11.IDLE and not self._is_tidy(data):
            self.send_400_response("Invalid Host.")
            return
        super().data_received(data)
        if self.cycle is not None and self.cycle.more_body and self.cycle is not self._body_of:
            self._body_of = self.cycle
            self._expect(BODY_SECONDS)

    def _is_tidy(self, data: bytes) -> bool:
        """Whether the headers, as far as they have arrived, name the host as browsers do."""
        self._head += data
        end = _END.search(self._head)
        if end is None:
            return True
        host = _HOST.search(self._head, 0, end.end())
        self._head = b""
        return host is None or _TIDY.fullmatch(host[1]) is not None

    def on_response_complete(self) -> None:
        """Wait for the next request. One that was refused before its body came stays as old as it was."""
        super().on_response_complete()
        if not self.cycle.more_body:
            self._since = self.loop.time()
        self._expect(HEADERS_SECONDS)

    def pause_writing(self) -> None:
        """Wait for the client, but not for ever."""
        super().pause_writing()
        self._unread = self.loop.call_later(ANSWER_SECONDS, self.abort)

    def resume_writing(self) -> None:
        """Go on: the client has read."""
        super().resume_writing()
        _cancel(self._unread)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget what the connection waited for."""
        _cancel(self._deadline)
        _cancel(self._unread)
        super().connection_lost(exc)

    def _expect(self, seconds: float) -> None:
        _cancel(self._deadline)
        self._deadline = self.loop.call_later(seconds, self._is_late)

    def _is_late(self) -> None:
        if not self.is_answering and not self.flow.write_paused:
            self.abort()


def _cancel(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()


class Server(uvicorn.Server):
    """A server that leaves signals to its caller, and waits for nobody when it stops.

    Args:
        session: What is served.
        access: Who may ask.
    """

    def __init__(self, session: Session, access: Access) -> None:
        self._session = session
        super().__init__(
            uvicorn.Config(
                app(session, access),
                http=functools.partial(Connection, on_crowd=self._crowded),  # type: ignore[arg-type]
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

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        """Answer requests until `stop` is called."""
        asyncio.get_running_loop().set_exception_handler(self._note)
        await super().serve(sockets)

    def stop(self) -> None:
        """Answer nothing more."""
        self._session.engine.close(0)
        self.should_exit = True

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals alone."""
        yield

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Close what waits for a request, and soon everything."""
        self._abort(lambda connection: not connection.is_answering)
        asyncio.get_running_loop().call_later(_LAST_SECONDS, self._abort)
        await asyncio.sleep(0)  # in which those are closed
        await super().shutdown(sockets)

    def _abort(self, which: Callable[[Connection], bool] = lambda _: True) -> None:
        for connection in [*self.server_state.connections]:
            if isinstance(connection, Connection) and which(connection):
                connection.abort()

    def _crowded(self) -> None:
        line = "more connections than the page needs are open; the oldest are closed"
        self._session.report_once("crowd", line)

    def _note(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if isinstance(error, OSError) and error.errno in _EXHAUSTED:  # asyncio tries again after a second
            self._session.report_once("exhausted", f"cannot accept connections: {one_line(error)}")
        else:
            loop.default_exception_handler(context)
