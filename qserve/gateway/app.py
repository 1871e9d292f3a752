"""The gateway, put together. From the outside in:

RequestContext   id, metrics, log line            middleware.py
CORSMiddleware   only if origins are named        starlette
ApiErrors        exceptions → OpenAI's shape      middleware.py
KeyAuth          key and Host                     auth.py
routes           ROUTES → Endpoints → Exchange    routes.py, endpoints.py, relay.py
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence

from starlette.middleware.cors import CORSMiddleware
from starlette.routing import Route as StarletteRoute
from starlette.routing import Router
from starlette.types import ASGIApp, Receive, Scope, Send

from qserve.engine.base import WorkerEndpoint
from qserve.gateway.auth import KeyAuth
from qserve.gateway.endpoints import Endpoint, Endpoints
from qserve.gateway.metrics import GatewayMetrics
from qserve.gateway.middleware import ApiErrors, RequestContext
from qserve.gateway.routes import ROUTES, RelayedRoute
from qserve.gateway.settings import GatewaySettings
from qserve.gateway.upstream import Upstream, watch

__all__ = ["build_gateway"]


def build_gateway(settings: GatewaySettings, workers: Sequence[WorkerEndpoint]) -> ASGIApp:
    """The ASGI app. It needs its lifespan run, and reads the workers' `state` and `detail` while they change."""
    assert workers, "a gateway without workers has nothing to serve"
    metrics = GatewayMetrics()
    upstreams = [Upstream(worker, settings) for worker in workers]
    metrics.watch_workers(upstreams)
    app: ASGIApp = _router(Endpoints(settings, upstreams, metrics), upstreams, settings)
    app = ApiErrors(KeyAuth(app, settings.keys, settings.allowed_hosts))
    if settings.cors_origins:
        app = CORSMiddleware(
            app, allow_origins=settings.cors_origins, allow_methods=("GET", "POST"), allow_headers=("*",),
            expose_headers=("x-request-id", "retry-after"),
        )  # fmt: skip
    return RequestContext(app, metrics)


class _Raw:
    """An endpoint that speaks ASGI itself: Starlette wraps functions, and leaves objects alone."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._endpoint(scope, receive, send)


def _router(endpoints: Endpoints, upstreams: Sequence[Upstream], settings: GatewaySettings) -> ASGIApp:
    routes = [
        StarletteRoute(
            route.path.replace("{model}", "{model:path}"),
            _Raw(endpoints.relayed(route) if isinstance(route, RelayedRoute) else endpoints.of(route.path)),
            methods=[route.method],
        )
        for route in ROUTES
    ]

    @contextlib.asynccontextmanager
    async def lifespan(_: object) -> AsyncIterator[None]:
        watching = asyncio.create_task(watch(upstreams, settings.watch_interval_s))
        try:
            yield
        finally:
            watching.cancel()
            for upstream in upstreams:
                upstream.client.close()

    router = Router(routes, redirect_slashes=False, lifespan=lifespan)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        scope["app"] = router  # makes the router raise what it can't route, so that ApiErrors gives it its shape
        await router(scope, receive, send)

    return app
