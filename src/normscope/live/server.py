"""The server of a live page: who may ask, how much, and what a browser may do with the answer."""

import asyncio
import hmac
import json
import re
import traceback
from collections.abc import Awaitable, Callable

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from normscope.errors import InputError, one_line
from normscope.live.engine import Busy, Outdated
from normscope.live.options import LOCAL
from normscope.live.session import Session
from normscope.reporting.page.live_page import POLICY, live_page

LARGEST_BODY = 1_000_000
"""Bytes of a request."""
_DRAINED = 200_000_000
"""Bytes of a larger one that are read and dropped, so that its sender gets to read the answer."""
TOKEN_HEADER = "x-normscope-token"

_HOST = re.compile(r"(\[[0-9a-f:]+\]|[a-z0-9.-]+)(?::[0-9]+)?")

Handler = Callable[[Request], Awaitable[Response]]

_HEADERS = {
    "Content-Security-Policy": f"{POLICY}; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",  # addresses may hold a token
    "Cache-Control": "no-store",
}


class Refusal(Exception):
    """A request that is not answered, with its status."""

    def __init__(self, status: int, line: str) -> None:
        super().__init__(line)
        self.status = status


def app(session: Session, token: str | None = None, *, framed: bool = False) -> Starlette:
    """The server as an ASGI application.

    Args:
        session: What is served.
        token: What requests must show; None for a server that only this machine reaches.
        framed: Whether other pages, such as a notebook, may show this one in a frame.
    """
    headers = _HEADERS | ({"Content-Security-Policy": POLICY} if framed else {})

    async def page(_: Request) -> Response:
        return HTMLResponse(live_page(session.about()))

    async def answer(request: Request) -> Response:
        future = session.answer(_parsed(await _body(request)))
        try:
            return JSONResponse(await asyncio.wrap_future(future))
        except InputError as error:  # of a text, and not of the request: a text is empty while it is typed
            session.report(error)
            return JSONResponse({"error": str(error)})

    def guarded(handle: Handler) -> Handler:
        async def respond(request: Request) -> Response:
            try:
                _check(request, token)
                response = await handle(request)
            except Exception as error:
                response = _failure(session, error)
            response.headers.update(headers)
            return response

        return respond

    async def unknown(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        line = f"{request.method} {request.url.path[:80]}: {error.detail.lower()}"
        response = _failure(session, Refusal(error.status_code, line))
        response.headers.update(headers)
        return response

    routes = [Route("/", guarded(page)), Route("/answer", guarded(answer), methods=["POST"])]
    return Starlette(routes=routes, exception_handlers={HTTPException: unknown})


def _failure(session: Session, error: Exception) -> Response:
    """What a request gets instead of an answer: one line."""
    match error:
        case Outdated():
            return JSONResponse({"outdated": True}, 409)
        case ClientDisconnect():
            return Response(status_code=499)
        case Refusal():
            status = error.status
        case InputError():
            status = 503 if isinstance(error, Busy) else 400
        case _:
            traceback.print_exception(error)
            line = f"a bug of normscope, with its traceback in the terminal: {type(error).__name__}: {one_line(error)}"
            return JSONResponse({"error": line}, 500)
    session.report(error)
    return JSONResponse({"error": str(error)}, status)


def _check(request: Request, token: str | None) -> None:
    """Check that a request comes from a page of this server.

    Another site's page may send requests here, or point a name of its own to this machine: browsers then tell by `Origin` and
    `Host`.

    Raises:
        Refusal: If it does not.
    """
    host = request.headers.get("host", "")
    name = _HOST.fullmatch(host.lower())
    if token is None and (name is None or name[1].strip("[]") not in LOCAL):
        raise Refusal(421, f"Host {host[:80]!r}: expected {' or '.join(LOCAL)}")
    origin = request.headers.get("origin")
    if origin is not None and origin != f"{request.url.scheme}://{host}":
        raise Refusal(403, f"Origin {origin[:80]!r}: expected a page of this server")
    if token is not None:
        shown = request.headers.get(TOKEN_HEADER) or request.query_params.get("token", "")
        if not hmac.compare_digest(shown.encode(), token.encode()):
            raise Refusal(403, "expected the token of the address that the server printed")


async def _body(request: Request) -> bytes:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":  # which other sites' pages cannot send without asking
        raise Refusal(415, f"Content-Type {kind[:40]!r}: expected application/json")
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size <= LARGEST_BODY:
            parts.append(part)
        elif size > _DRAINED:
            break
        else:
            parts.clear()
    if size > LARGEST_BODY:
        raise Refusal(413, f"request: expected at most {LARGEST_BODY:,} bytes")
    return b"".join(parts)


def _parsed(body: bytes) -> object:
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        raise InputError(f"request: expected JSON: {one_line(error)}") from error
