"""The server of a live page: where it listens, who may ask, and how an answer gets to the browser.

Other users of a machine reach its ports too, so every server has a token. The address that is printed holds it; opening that
address once sets a cookie, and from then on the browser opens links without it.
"""

import asyncio
import contextlib
import dataclasses
import datetime
import errno
import functools
import hmac
import ipaddress
import json
import re
import secrets
import socket
import traceback
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.routing import Route
from uvicorn.protocols.http.h11_impl import H11Protocol

from normscope.errors import InputError, one_line, printable
from normscope.live.engine import Busy, Outdated
from normscope.live.session import Session
from normscope.reporting.page.live_page import POLICY, REFUSED

LOCAL = ("127.0.0.1", "localhost", "::1")
"""Hosts that only this machine reaches."""
TOKEN_HEADER = "x-normscope-token"
LARGEST_BODY = 1_000_000
"""Bytes of a request."""
LARGEST_IMAGE = 20_000_000
"""Bytes of a file with an image."""
_DRAINED = 200_000_000
"""Bytes of a larger one that are read and dropped, so that its sender gets to read the answer."""
CONNECTIONS = 64
"""Connections at a time. A browser opens six to a server."""
REQUEST_SECONDS = 30.0
"""How long a request may take to arrive, and its answer to be read."""
_HOST = re.compile(r"(\[[0-9a-f:]+\]|[a-z0-9.-]+)(?::([0-9]{1,5}))?")
_HEADERS = {
    "Content-Security-Policy": f"{POLICY}; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",  # addresses may hold a token
    "Cache-Control": "no-store",
}


class _Json(JSONResponse):
    """JSON in ASCII: half a sign, which anyone may send and a message may quote, is no UTF-8."""

    def render(self, content: Any) -> bytes:
        """The body."""
        return json.dumps(content, allow_nan=False, separators=(",", ":")).encode()


Handler = Callable[[Request], Awaitable[Response]]


class Refusal(Exception):
    """A request that is not answered, with its status."""

    def __init__(self, status: int, line: str) -> None:
        super().__init__(line)
        self.status = status


@dataclasses.dataclass(frozen=True)
class Access:
    """What a request must show."""

    token: str = dataclasses.field(default_factory=lambda: secrets.token_urlsafe(16))
    hosts: frozenset[str] | None = frozenset(LOCAL)
    """Names under which the server is asked; None for any."""
    framed: bool = False
    """Whether other pages, such as a notebook, may show this one in a frame. Browsers keep no cookies there, so the page itself
    then shows the token of its address."""

    @classmethod
    def of(cls, listening: socket.socket, host: str) -> "Access":
        """The access to a server that listens, as `host` asks; only this machine reaches a loopback address."""
        local = ipaddress.ip_address(listening.getsockname()[0].partition("%")[0]).is_loopback
        return cls(hosts=frozenset((*LOCAL, host.lower())) if local else None)

    def check_page(self, request: Request) -> None:
        """Check that a request comes from a page of this server, or from none.

        Another site's page may send requests here, or make a host name of its own point to this machine: browsers then say so
        in `Origin` and `Host`.

        Raises:
            Refusal: If it does not.
        """
        host = request.headers.get("host", "")
        name = _HOST.fullmatch(host.lower())
        if name is None or (self.hosts is not None and name[1].strip("[]") not in self.hosts):
            expected = "the name of a host" if self.hosts is None else " or ".join(sorted(self.hosts))
            raise Refusal(421, f"Host {printable(repr(host), 80)}: expected {expected}")
        origin = request.headers.get("origin")
        if origin is not None and origin != f"{request.scope['scheme']}://{host}":
            raise Refusal(403, f"Origin {printable(repr(origin), 80)}: expected a page of this server")

    def check_token(self, request: Request) -> None:
        """Check that a request shows the token, in a header or a cookie.

        Raises:
            Refusal: If it does not.
        """
        shown = (request.headers.get(TOKEN_HEADER), request.cookies.get(cookie(request)))
        if not any(map(self._is_token, shown)):
            raise Refusal(403, "expected the token: open the address that normscope printed")

    def has_login(self, request: Request) -> bool:
        """Whether the address of a request holds the token."""
        return self._is_token(request.query_params.get("token"))

    def _is_token(self, shown: str | None) -> bool:
        return hmac.compare_digest((shown or "").encode("utf-8", "surrogatepass"), self.token.encode())


def cookie(request: Request) -> str:
    """The name of the cookie that holds the token: browsers send those of one port to all ports of a host."""
    name = _HOST.fullmatch(request.headers.get("host", "").lower())
    return f"normscope-{name[2] or 80}" if name else ""


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
        listening.listen(128)
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


class Connection(H11Protocol):
    """A connection that is closed if its request takes too long to arrive, or if another one needs its place.

    uvicorn limits only requests whose headers have arrived, and its `limit_concurrency` refuses the owner too: whoever opened
    connections and said nothing would keep everybody out. Here the oldest of those that wait for a request makes room.
    """

    _deadline: asyncio.TimerHandle | None = None

    @property
    def is_answering(self) -> bool:
        """Whether a whole request has arrived, and its answer is being computed."""
        cycle = self.cycle
        return cycle is not None and not cycle.more_body and not cycle.response_complete and not self.flow.write_paused

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for a request. If there are too many connections, one is closed."""
        super().connection_made(transport)
        self._wait()
        others = [each for each in self.connections if isinstance(each, Connection) and not each.transport.is_closing()]
        if len(others) > CONNECTIONS:
            min((each for each in others if not each.is_answering), key=lambda each: each._since).transport.abort()

    def on_response_complete(self) -> None:
        """Wait for the client to read the answer, and for its next request."""
        super().on_response_complete()
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no more."""
        super().connection_lost(exc)
        if self._deadline is not None:
            self._deadline.cancel()

    def _wait(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._since = self.loop.time()
        self._deadline = self.loop.call_later(REQUEST_SECONDS, self._end)

    def _end(self) -> None:
        if not self.is_answering:
            self.transport.abort()


class Server(uvicorn.Server):
    """A server that leaves signals to its caller.

    Args:
        session: What is served.
        access: Who may ask.
    """

    def __init__(self, session: Session, access: Access) -> None:
        self._session = session
        super().__init__(
            uvicorn.Config(
                app(session, access),
                http=Connection,
                ws="none",
                lifespan="off",
                loop="asyncio",
                log_level="critical",  # a stranger can cause as many warnings as they like
                access_log=False,
                server_header=False,
                proxy_headers=False,
                backlog=100,
                timeout_graceful_shutdown=1,
            )
        )

    def stop(self) -> None:
        """Answer nothing more."""
        self._session.engine.close(0)
        self.should_exit = True

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals alone."""
        yield

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Wait for answers alone."""
        for connection in [*self.server_state.connections]:
            if isinstance(connection, Connection) and not connection.is_answering:
                connection.transport.abort()
        await asyncio.sleep(0)  # in which they are closed
        await super().shutdown(sockets)


def app(session: Session, access: Access) -> Starlette:
    """The server as an ASGI application."""
    headers = _HEADERS | ({"Content-Security-Policy": POLICY} if access.framed else {})

    async def page(request: Request) -> Response:
        if access.has_login(request):
            if access.framed and request.headers.get("sec-fetch-dest") != "document":
                return HTMLResponse(session.page())
            response = RedirectResponse("/", 303)  # browsers keep what follows the #
            response.set_cookie(cookie(request), access.token, httponly=True, samesite="strict")
            return response
        try:
            access.check_token(request)
        except Refusal as error:
            session.report_once(f"{error.status}", str(error))
            return HTMLResponse(REFUSED, error.status)
        return RedirectResponse("/", 303) if request.url.query else HTMLResponse(session.page())

    async def answer(request: Request) -> Response:
        access.check_token(request)
        future = session.answer(_parsed(await _body(request)))
        try:
            return _Json(await _while_connected(request, future))
        except InputError as error:  # of a text, and not of the request: a text is empty while it is typed
            session.report(error)
            return _Json({"error": str(error)})

    async def image(request: Request) -> Response:
        access.check_token(request)
        content = await _body(request, "application/octet-stream", LARGEST_IMAGE)
        name, text = (request.query_params.get(key, "") for key in ("name", "text"))
        return HTMLResponse(await _while_connected(request, session.image(content, name, text)))

    def guarded(handle: Handler) -> Handler:
        async def respond(request: Request) -> Response:
            try:
                access.check_page(request)
                response = await handle(request)
            except Exception as error:
                response = _failure(session, error)
            response.headers.update(headers)
            return response

        return respond

    async def unknown(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        line = f"{request.method} {printable(request.url.path, 80)}: {error.detail.lower()}"
        response = _failure(session, Refusal(error.status_code, line))
        response.headers.update(headers)
        return response

    routes = [
        Route("/", guarded(page)),
        Route("/answer", guarded(answer), methods=["POST"]),
        Route("/image", guarded(image), methods=["POST"]),
        Route("/saved", guarded(functools.partial(_saved, session, access)), methods=["POST"]),
    ]
    return Starlette(routes=routes, exception_handlers={HTTPException: unknown})


async def _saved(session: Session, access: Access, request: Request) -> Response:
    """The page that a request asks for as a file."""
    access.check_token(request)
    asked = _parsed(await _body(request))
    state = asked.get("state") if isinstance(asked, dict) else None
    today = datetime.date.today().isoformat()
    return HTMLResponse(await asyncio.to_thread(session.saved_page, state, when=today))


def _failure(session: Session, error: Exception) -> Response:
    """What a request gets instead of an answer: one line."""
    match error:
        case Outdated():
            return _Json({"outdated": True}, 409)
        case ClientDisconnect():
            return Response(status_code=499)
        case Refusal():  # strangers can cause as many as they like
            session.report_once(str(error.status), str(error))
            return _Json({"error": str(error)}, error.status)
        case InputError():
            session.report(error)
            return _Json({"error": str(error)}, 503 if isinstance(error, Busy) else 400)
        case _:
            traceback.print_exception(error)
            line = f"a bug of normscope, with its traceback in the terminal: {type(error).__name__}: {one_line(error)}"
            return _Json({"error": line}, 500)


async def _while_connected(request: Request, future: "Future[Any]") -> Any:
    """The result of a computation, which is cancelled if the client leaves.

    Raises:
        ClientDisconnect: If it has left.
    """
    answered = asyncio.wrap_future(future)
    gone = asyncio.ensure_future(_left(request))
    try:
        await asyncio.wait((answered, gone), return_when=asyncio.FIRST_COMPLETED)
        if not answered.done():
            raise ClientDisconnect
        return answered.result()
    finally:
        answered.cancel()
        gone.cancel()


async def _left(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _body(request: Request, expected: str = "application/json", largest: int = LARGEST_BODY) -> bytes:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != expected:  # which other sites' pages cannot send without asking
        raise Refusal(415, f"Content-Type {kind[:40]!r}: expected {expected}")
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size <= largest:
            parts.append(part)
        elif size > _DRAINED:
            break
        else:
            parts.clear()
    if size > largest:
        raise Refusal(413, f"request: expected at most {largest:,} bytes")
    return b"".join(parts)


def _parsed(body: bytes) -> object:
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        raise InputError(f"request: expected JSON: {one_line(error)}") from error
