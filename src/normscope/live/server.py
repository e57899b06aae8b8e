"""The server of a live page: who may ask, how much, and what a browser may do with the answer."""

import asyncio
import json
import traceback
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from normscope.errors import InputError, one_line, printable
from normscope.live.access import Access, Refusal, cookie
from normscope.live.engine import Busy, Outdated
from normscope.live.session import Session
from normscope.reporting.page.live_page import POLICY, REFUSED, live_page

LARGEST_BODY = 1_000_000
"""Bytes of a request."""
_DRAINED = 200_000_000
"""Bytes of a larger one that are read and dropped, so that its sender gets to read the answer."""

Handler = Callable[[Request], Awaitable[Response]]

_HEADERS = {
    "Content-Security-Policy": f"{POLICY}; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",  # addresses may hold a token
    "Cache-Control": "no-store",
}


def app(session: Session, access: Access) -> Starlette:
    """The server as an ASGI application.

    Args:
        session: What is served.
        access: Who may ask.
    """
    headers = _HEADERS | ({"Content-Security-Policy": POLICY} if access.framed else {})

    async def page(request: Request) -> Response:
        if access.has_login(request):
            if access.framed and request.headers.get("sec-fetch-dest") != "document":
                return HTMLResponse(live_page(session.about()))
            response = RedirectResponse("/", 303)  # browsers keep what follows the #
            response.set_cookie(cookie(request), access.token, httponly=True, samesite="strict")
            return response
        try:
            access.check_token(request)
        except Refusal as error:
            session.report_once(f"{error.status}", str(error))
            return HTMLResponse(REFUSED, error.status)
        return RedirectResponse("/", 303) if request.url.query else HTMLResponse(live_page(session.about()))

    async def answer(request: Request) -> Response:
        access.check_token(request)
        future = session.answer(_parsed(await _body(request)))
        try:
            return JSONResponse(await _while_connected(request, future))
        except InputError as error:  # of a text, and not of the request: a text is empty while it is typed
            session.report(error)
            return JSONResponse({"error": str(error)})

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

    routes = [Route("/", guarded(page)), Route("/answer", guarded(answer), methods=["POST"])]
    return Starlette(routes=routes, exception_handlers={HTTPException: unknown})


def _failure(session: Session, error: Exception) -> Response:
    """What a request gets instead of an answer: one line."""
    match error:
        case Outdated():
            return JSONResponse({"outdated": True}, 409)
        case ClientDisconnect():
            return Response(status_code=499)
        case Refusal():  # strangers can cause as many as they like
            session.report_once(str(error.status), str(error))
            return JSONResponse({"error": str(error)}, error.status)
        case InputError():
            session.report(error)
            return JSONResponse({"error": str(error)}, 503 if isinstance(error, Busy) else 400)
        case _:
            traceback.print_exception(error)
            line = f"a bug of normscope, with its traceback in the terminal: {type(error).__name__}: {one_line(error)}"
            return JSONResponse({"error": line}, 500)


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
