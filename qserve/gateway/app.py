"""Builds the gateway's ASGI app. Its layers, from the outside in:

RequestContext   id, metrics, span, log line, run middleware.py, telemetry/, run_history.py
CORSMiddleware   only if origins are named        starlette
ApiErrors        exceptions → OpenAI's shape      middleware.py
BrowserAccess    the web UI: sign-in, sessions    web/, where there is a UI
KeyAuth          key and Host                     auth.py
Dispatch         method and path → endpoint       routes.py, dispatch.py
Endpoints        what each route does             endpoints.py, relay/, batches/
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

from qserve.batches import FileBounds
from qserve.gateway.adapters import AdapterControl, AdapterEndpoints
from qserve.gateway.administration import Administration, Restart
from qserve.gateway.auth import AdminKeys, GuardedKeys, KeyAuth, owners_of
from qserve.gateway.background import BackgroundEndpoints, LocalRuns
from qserve.gateway.batches import BatchEndpoints, GatewayAsService
from qserve.gateway.bodies import Bodies
from qserve.gateway.dispatch import Dispatch
from qserve.gateway.endpoints import Endpoints, HostTeller
from qserve.gateway.key_throttle import KeyThrottle
from qserve.gateway.keys.book import KeyBook, LocalLedger, NamedKeys
from qserve.gateway.middleware import ApiErrors, RequestContext
from qserve.gateway.processes.shared import Shared
from qserve.gateway.relay.serving import why_nobody_serves
from qserve.gateway.relay.upstream import Observed, Upstream, watch
from qserve.gateway.residency import ResidencyControl, ResidencyEndpoints
from qserve.gateway.routes import ADAPTER_ROUTES, BATCH_ROUTES, RESPONSE_ROUTES, ROUTES
from qserve.gateway.run_history import RunHistory
from qserve.gateway.settings import GatewaySettings
from qserve.gateway.telemetry.machine_memory import MachineMemory
from qserve.gateway.telemetry.tracing import Traces
from qserve.gateway.web import BrowserAccess, UiEndpoint, UiRelay
from qserve.worker.base import WorkerStatus

__all__ = ["build_gateway"]

_ANSWERED_ELSEWHERE = frozenset((*BATCH_ROUTES, *RESPONSE_ROUTES, *ADAPTER_ROUTES))


def build_gateway(
    settings: GatewaySettings,
    workers: Sequence[WorkerStatus],
    traces: Traces | None = None,
    ui: UiEndpoint | None = None,
    runs: RunHistory | None = None,
    restart: Restart | None = None,
    host: HostTeller | None = None,
    files: Path | None = None,
    file_bounds: FileBounds | None = None,
    shared: Shared | None = None,
    machine: MachineMemory | None = None,
    residency: ResidencyControl | None = None,
    adapters: AdapterControl | None = None,
) -> ASGIApp:
    """The ASGI app. Workers of one group are replicas of each other.

    It needs its lifespan run, and reads the workers' `state` and `detail` while they change.

    `ui`: the web UI that browsers get at `/`. `runs`: the run store, read by routes and given finished requests.
    `restart`: starts a rolling restart and names the workers; returns None while one is running. `host`: memory of
    the processes without a model. `files`: folder of files and batches, which several processes may share; None:
    these routes are off. `shared`: state in common with the other gateway processes of the port. `machine`: its free
    memory, where that is watched. `residency`: loads and unloads models that take turns; None: all are always there.
    `adapters`: loads LoRA adapters; None: this gateway can't.
    """
    assert workers, "a gateway without workers has nothing to serve"
    shared = shared or Shared()
    metrics, throttle = shared.metrics, shared.throttle
    upstreams = [Upstream(worker, settings) for worker in workers]
    groups = shared.replicas(upstreams)
    metrics.watch_workers(upstreams)
    if machine is not None:
        metrics.watch_machine(machine)
    runs = runs or RunHistory()
    keys = _named_keys(settings, shared, runs, () if ui is None else (ui.api_key,))
    book = None if keys is None else keys.book
    bodies = Bodies(settings)
    admin_keys = AdminKeys(settings.admin_keys, throttle)
    administration = Administration(admin_keys, restart)
    responses = BackgroundEndpoints(settings.client_stall_timeout_s)
    elsewhere = {"/v1/responses": responses.create}
    on_demand = ResidencyEndpoints(groups, admin_keys, residency, bodies, needs_key=settings.needs_key)
    endpoints = Endpoints(settings, groups, shared, runs, bodies, administration, on_demand, host, elsewhere, keys)
    loading = AdapterEndpoints(_of_service(settings, throttle), adapters, bodies)
    batches = BatchEndpoints(files, file_bounds or FileBounds(), bodies, settings)
    app: ASGIApp = Dispatch(
        {
            **{route: endpoints.of(route) for route in ROUTES if route not in _ANSWERED_ELSEWHERE},
            **{route: batches.of(route) for route in BATCH_ROUTES},
            **{route: responses.of(route) for route in RESPONSE_ROUTES},
            **{route: loading.of(route) for route in ADAPTER_ROUTES},
        },
        partial(why_nobody_serves, groups),
        has_page=ui is not None,
    )
    keyless = RequestContext(ApiErrors(app), metrics, traces, runs)
    service = GatewayAsService(keyless, groups, settings.max_body_bytes)
    watched: list[Observed] = [*groups]
    tasks = [partial(watch, watched, settings.watch_interval_s), partial(batches.run, service)]
    if book is not None:
        tasks.append(partial(book.follow))
        metrics.key_names = book.names
    if shared.runs is None:
        local = LocalRuns(keyless, settings.max_responses_bytes, settings.keep_responses_s)
        metrics.background_bytes = lambda: local.num_bytes
        tasks.append(partial(local.run))
    responses.runs = shared.runs or local
    relayed = upstreams
    of_users = GuardedKeys(_opening(settings, ()), throttle, book)
    if ui is None:
        app = KeyAuth(app, of_users, settings.allowed_hosts)
    else:
        relay = UiRelay(ui, settings, bodies)
        of_all = GuardedKeys(_opening(settings, (ui.api_key,)), throttle, book)
        app = KeyAuth(app, of_all, settings.allowed_hosts)
        app = BrowserAccess(app, relay, settings, of_users, shared.sessions, book)
        watched.append(relay.upstream)
        relayed = [*upstreams, relay.upstream]
    app = ApiErrors(app)
    if settings.cors_origins:
        app = CORSMiddleware(
            app,
            allow_origins=settings.cors_origins,
            allow_methods=("GET", "POST", "DELETE"),
            allow_headers=("*",),
            expose_headers=("x-request-id", "request-id", "retry-after"),
        )
    return _WithLifespan(RequestContext(app, metrics, traces, runs), tasks, relayed, endpoints)


def _opening(settings: GatewaySettings, beside: tuple[str, ...]) -> tuple[str, ...]:
    """All accepted keys, those of administrators included; none if users need no key."""
    return (*settings.keys, *settings.admin_keys, *beside) if settings.needs_key else ()


def _of_service(settings: GatewaySettings, throttle: KeyThrottle) -> AdminKeys | None:
    """The service's own keys, those of administrators included; None where it needs none."""
    return AdminKeys((*settings.keys, *settings.admin_keys), throttle) if settings.needs_key else None


def _named_keys(
    settings: GatewaySettings, shared: Shared, runs: RunHistory, beside: tuple[str, ...]
) -> NamedKeys | None:
    if not settings.key_file:
        return None
    book = KeyBook(Path(settings.key_file))
    ledger = shared.ledger or LocalLedger(book, runs.used_today())
    return NamedKeys(book, ledger, owners_of(_opening(settings, beside)))


class _WithLifespan:
    """Runs background tasks from start-up to shutdown: the watch over worker states first."""

    def __init__(
        self,
        app: ASGIApp,
        background: Sequence[Callable[[], Coroutine[Any, Any, None]]],
        upstreams: Sequence[Upstream],
        endpoints: Endpoints,
    ) -> None:
        self._app = app
        self._background = background
        self._upstreams = upstreams
        self._endpoints = endpoints

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        return self._lifespan(receive, send) if scope["type"] == "lifespan" else self._app(scope, receive, send)

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        await receive()
        tasks = [asyncio.create_task(run()) for run in self._background]
        await send({"type": "lifespan.startup.complete"})
        await receive()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for upstream in self._upstreams:
            upstream.client.close()
        await self._endpoints.close()
        await send({"type": "lifespan.shutdown.complete"})
