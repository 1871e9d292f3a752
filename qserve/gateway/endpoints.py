"""What each route does: read, check, and hand on or answer."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from typing import Any

from pydantic import ValidationError
from starlette.types import Receive, Scope, Send

import qserve
from qserve.gateway import exposition
from qserve.gateway.dispatch import Endpoint
from qserve.gateway.limits import read_body, require_json
from qserve.gateway.metrics import GatewayMetrics
from qserve.gateway.record import record_of
from qserve.gateway.relay import Exchange
from qserve.gateway.respond import send_body, send_json
from qserve.gateway.routes import RelayedRoute, Route
from qserve.gateway.settings import GatewaySettings
from qserve.gateway.upstream import Upstream, resolve
from qserve.wire.errors import ApiError, from_validation

__all__ = ["Endpoints"]


class Endpoints:
    """The routes' work over the same workers, settings and metrics."""

    def __init__(self, settings: GatewaySettings, upstreams: Sequence[Upstream], metrics: GatewayMetrics) -> None:
        self._settings = settings
        self._upstreams = upstreams
        self._metrics = metrics
        self._started_unix_s = int(time.time())

    def of(self, route: Route) -> Endpoint:
        """What answers requests to this route of `ROUTES`."""
        if isinstance(route, RelayedRoute):
            return self._relayed(route)
        return {
            "/health": self.health,
            "/ready": self.ready,
            "/version": self.version,
            "/metrics": self.metrics,
            "/openapi.json": self.openapi,
            "/v1/models": self.models,
            "/v1/models/{model}": self.model,
            "/v1/qserve/memory": self.memory,
        }[route.path]

    def _relayed(self, route: RelayedRoute) -> Endpoint:
        num_sequences = route.num_sequences or (lambda _: 0)

        async def endpoint(scope: Scope, receive: Receive, send: Send) -> None:
            require_json(scope)
            body = await read_body(scope, receive, self._settings.max_body_bytes, self._settings.body_idle_timeout_s)
            try:
                request: Any = route.request.model_validate_json(body)
            except ValidationError as error:
                raise from_validation(error) from None
            upstream = resolve(self._upstreams, request.model)
            record = record_of(scope)
            record.model = upstream.endpoint.models[0]
            record.worker = upstream.name
            await Exchange(
                upstream, route.path, body, num_sequences(request), record, self._metrics,
                self._settings.client_stall_timeout_s,
            ).run(receive, send)  # fmt: skip

        return endpoint

    async def health(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send_json(send, 200, {"status": "ok"})

    async def version(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send_json(send, 200, {"version": qserve.__version__})

    async def ready(self, scope: Scope, receive: Receive, send: Send) -> None:
        endpoints = [upstream.endpoint for upstream in self._upstreams]
        workers = [
            {"name": one.name, "state": one.state.value, "detail": one.detail, "models": list(one.models)}
            for one in endpoints
        ]
        late = [upstream for upstream in self._upstreams if not upstream.is_ready]
        if not late:
            await send_json(send, 200, {"status": "ready", "workers": workers})
            return
        try:
            late[0].check_ready()
        except ApiError as error:
            record_of(scope).error_code = error.code
            body = {"status": "not_ready", "workers": workers, **json.loads(error.body())}
            headers = [(name.encode(), value.encode()) for name, value in error.headers.items()]
            await send_body(send, 503, json.dumps(body, ensure_ascii=False).encode(), headers=headers)

    async def models(self, scope: Scope, receive: Receive, send: Send) -> None:
        cards = [self._card(upstream, name) for upstream in self._upstreams for name in upstream.endpoint.models]
        await send_json(send, 200, {"object": "list", "data": cards})

    async def model(self, scope: Scope, receive: Receive, send: Send) -> None:
        name = scope["path_params"]["model"]
        await send_json(send, 200, self._card(resolve(self._upstreams, name), name))

    async def metrics(self, scope: Scope, receive: Receive, send: Send) -> None:
        ready = [upstream for upstream in self._upstreams if upstream.is_ready]
        texts = await asyncio.gather(*(upstream.get("/metrics") for upstream in ready), return_exceptions=True)
        of_workers = []
        for upstream, text in zip(ready, texts, strict=True):
            if isinstance(text, bytes):
                of_workers.append((upstream.name, text.decode(errors="replace")))
            else:
                self._metrics.count_error("worker_metrics_unreachable")
        body = exposition.merge(self._metrics.exposition().decode(), of_workers)
        await send_body(send, 200, body.encode(), exposition.CONTENT_TYPE)

    async def memory(self, scope: Scope, receive: Receive, send: Send) -> None:
        entries = await asyncio.gather(*(self._memory_of(upstream) for upstream in self._upstreams))
        await send_json(send, 200, {"object": "list", "data": entries})

    async def openapi(self, scope: Scope, receive: Receive, send: Send) -> None:
        from qserve.gateway.openapi import document  # the response schemas are needed for nothing else

        served = tuple(name for upstream in self._upstreams for name in upstream.endpoint.models)
        await send_body(send, 200, document(bool(self._settings.keys), served))

    async def _memory_of(self, upstream: Upstream) -> dict[str, Any]:
        entry = {"worker": upstream.name, "state": upstream.endpoint.state.value}
        try:
            return {**entry, "memory": json.loads(await upstream.get("/v1/qserve/memory"))}
        except (ApiError, ValueError) as error:
            return {**entry, "error": str(error)}

    def _card(self, upstream: Upstream, name: str) -> dict[str, Any]:
        endpoint = upstream.endpoint
        return {
            "id": name,
            "object": "model",
            "created": self._started_unix_s,
            "owned_by": "qserve",
            "root": endpoint.models[0],
            "max_model_len": endpoint.max_model_len,
        }
