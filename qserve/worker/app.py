"""The ASGI app of qserve's own workers: common routes, internal key, errors in the API's format.

GET /health · /metrics · /v1/models · /v1/qserve/memory
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from qserve.errors import RequestFailed
from qserve.wire.errors import ApiError, Dialect, from_failure
from qserve.worker.asgi import KeyGuard, to_response

__all__ = ["UNEXPECTED", "as_api_error", "worker_app"]

_log = logging.getLogger("qserve.worker")
UNEXPECTED = ApiError(500, "the worker failed on this request; its log says why", "internal_error")


def worker_app(
    routes: Iterable[Route],
    models: tuple[str, ...],
    key: str,
    *,
    card: Callable[[], Mapping[str, Any]],
    metrics: Callable[[], bytes],
    memory: Callable[[], Awaitable[Mapping[str, Any]]],
    dialect_of: Callable[[str], Dialect] = lambda path: Dialect.OPENAI,
) -> ASGIApp:
    """The ASGI app of a worker.

    Args:
        routes: its own, beside those that all have.
        models: names that it answers to.
        key: the internal key; whoever does not know it gets a 401.
        card: what GET /v1/models says of each model beside its name.
        metrics: Prometheus text.
        memory: what it holds, as GET /v1/qserve/memory tells it; must not hold the event loop.
        dialect_of: in whose shape errors of a path are.

    """
    created_unix_s = int(time.time())

    async def models_list(request: Request) -> Response:
        entry = {"object": "model", "created": created_unix_s, "owned_by": "qserve", **card()}
        return JSONResponse({"object": "list", "data": [{"id": name, **entry} for name in models]})

    async def health(request: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def exposition(request: Request) -> Response:
        return Response(metrics(), media_type="text/plain; version=0.0.4; charset=utf-8")

    async def held(request: Request) -> Response:
        return JSONResponse(await memory())

    async def expected(request: Request, error: Exception) -> Response:
        return to_response(as_api_error(error), dialect_of(request.url.path))

    async def unexpected(request: Request, error: Exception) -> Response:
        _log.exception("a request failed", exc_info=error)
        return to_response(UNEXPECTED, dialect_of(request.url.path))

    app = Starlette(
        routes=[
            Route("/health", health),
            Route("/metrics", exposition),
            Route("/v1/models", models_list),
            Route("/v1/qserve/memory", held),
            *routes,
        ],
        exception_handlers={ApiError: expected, RequestFailed: expected, Exception: unexpected},
    )
    return KeyGuard(app, key)


def as_api_error(error: Exception) -> ApiError:
    """An error of the API as it is, one of the engine with its status. Raises any other."""
    if isinstance(error, RequestFailed):
        return from_failure(error.code, str(error), error.param)
    if isinstance(error, ApiError):
        return error
    raise error
