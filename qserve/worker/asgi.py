"""ASGI parts of qserve's own workers: the internal key, errors in OpenAI's format, disconnected clients."""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Awaitable, Coroutine
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from qserve.wire.body_scan import check_encoding
from qserve.wire.errors import ApiError, Dialect

__all__ = ["CLIENT_CLOSED", "KeyGuard", "body_of", "to_response", "unless_client_leaves"]

_Answer = TypeVar("_Answer")
CLIENT_CLOSED = 499
"""nginx's number for a client that closed the connection; nobody reads it."""


class KeyGuard:
    """Lets in whoever knows the internal key: the gateway of the same `qserve up`."""

    def __init__(self, app: ASGIApp, key: str) -> None:
        self._app = app
        self._expected = f"Bearer {key}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            given = dict(scope["headers"]).get(b"authorization", b"")
            if not hmac.compare_digest(given, self._expected):
                error = ApiError(401, "this is a worker of qserve; ask the gateway instead", "unauthorized")
                await to_response(error)(scope, receive, send)
                return
        await self._app(scope, receive, send)


def to_response(error: ApiError, dialect: Dialect = Dialect.OPENAI) -> Response:
    """The error as an answer."""
    return Response(error.body(dialect), error.status, error.headers, media_type="application/json")


async def body_of(request: Request) -> bytes:
    """The whole body. `request.body()` would keep it as long as the request lives, and an answer may take minutes.

    Raises ApiError 415 for a compressed one.
    """
    check_encoding(", ".join(request.headers.getlist("content-encoding")))
    return b"".join([part async for part in request.stream()])


async def unless_client_leaves(request: Request, work: Coroutine[Any, Any, _Answer]) -> _Answer | None:
    """The result of `work`, or None after stopping it because the client closed the connection.

    Call it after the body was read whole.
    """
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(_disconnect(request))
    try:
        await asyncio.wait([working, leaving], return_when=asyncio.FIRST_COMPLETED)
        return await working if working.done() else None
    finally:
        for task in (working, leaving):
            task.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


async def _disconnect(request: Request) -> None:
    receive: Awaitable[Any]
    while True:
        receive = request.receive()
        message = await receive
        if message["type"] == "http.disconnect":
            return
