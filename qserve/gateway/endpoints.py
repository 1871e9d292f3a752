"""Endpoints that the gateway answers itself; the others are relayed (`relay/relayed.py`)."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from starlette.types import Receive, Scope, Send

from qserve.gateway.administration import Administration
from qserve.gateway.auth import owner_of
from qserve.gateway.bodies import Bodies
from qserve.gateway.dispatch import Endpoint
from qserve.gateway.keys.book import NamedKeys, check_model
from qserve.gateway.keys.endpoints import UsageEndpoint
from qserve.gateway.keys.entries import KeyEntry
from qserve.gateway.processes.shared import Shared, exposition_of
from qserve.gateway.relay.cache_salts import CacheSalts
from qserve.gateway.relay.relayed import Elsewhere, RelayedEndpoints
from qserve.gateway.relay.replicas import Replicas
from qserve.gateway.relay.serving import model_names, named
from qserve.gateway.relay.upstream import Upstream
from qserve.gateway.report_pages import HTML, POLICY, ReportPages
from qserve.gateway.residency import ACTIONS, ROOM, ResidencyEndpoints
from qserve.gateway.respond import send_body, send_json
from qserve.gateway.routes import RelayedRoute, Route
from qserve.gateway.run_history import RunHistory
from qserve.gateway.settings import GatewaySettings
from qserve.gateway.telemetry import exposition
from qserve.gateway.telemetry.record import RECORD
from qserve.planner.term import COLUMNS
from qserve.version import __version__
from qserve.wire.errors import ApiError
from qserve.worker.base import WorkerFacts, WorkerState

__all__ = ["Endpoints", "HostTeller"]

HostTeller = Callable[[], Awaitable[list[dict[str, Any]]]]
"""Returns planned and measured memory of the processes without a model: `host` in the memory document."""

_TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "vocab.json",
    "merges.txt",
)


class Endpoints:
    """Endpoints of all routes, over the same workers, settings and metrics."""

    def __init__(
        self,
        settings: GatewaySettings,
        groups: Sequence[Replicas],
        shared: Shared,
        runs: RunHistory,
        bodies: Bodies,
        administration: Administration,
        residency: ResidencyEndpoints,
        host: HostTeller | None = None,
        elsewhere: Mapping[str, Elsewhere] | None = None,
        keys: NamedKeys | None = None,
    ) -> None:
        self._settings = settings
        self._administration = administration
        self._residency = residency
        self._host = host
        self._groups = groups
        self._metrics = shared.metrics
        self._exposition = shared.exposition
        self._runs = runs
        self._reports = ReportPages(runs)
        salts = CacheSalts(shared.salt_secret, shared=settings.shared_prefix_cache)
        self._keys = keys
        self._usage = UsageEndpoint(keys)
        self._relayed = RelayedEndpoints(settings, groups, shared.metrics, bodies, salts, elsewhere, keys)
        self._started_unix_s = shared.started_unix_s

    @property
    def _upstreams(self) -> list[Upstream]:
        """Every worker, replicas one by one."""
        return [upstream for replicas in self._groups for upstream in replicas.upstreams]

    async def close(self) -> None:
        """Ends the processes that were started for requests."""
        await self._relayed.close()

    def of(self, route: Route) -> Endpoint:
        """The endpoint of a route of `ROUTES`."""
        if isinstance(route, RelayedRoute):
            return self._relayed.of(route)
        return {
            "/health": self.health,
            "/ready": self.ready,
            "/version": self.version,
            "/metrics": self.metrics,
            "/openapi.json": self.openapi,
            "/v1/models": self.models,
            "/v1/models/{model}": self.model,
            "/v1/qserve/memory": self.memory,
            "/v1/qserve/report": self.report,
            "/v1/qserve/usage": self._usage.answer,
            "/v1/qserve/restart": self._administration.restart,
            "/v1/qserve/models": self._residency.models,
            ROOM: self._residency.give_room,
            f"{ROOM}/{{room}}": self._residency.take_room_back,
            **{f"/v1/qserve/models/{{model}}/{one}": self._residency.of(one) for one in ACTIONS},
            "/v1/qserve/runs": self.runs,
            "/v1/qserve/runs/{run}": self.run,
            "/v1/qserve/trainings": self.trainings,
            "/report": self.report_page,
            "/report/{run}": self.report_page,
            "/v1/qserve/tokenizer/{model}": self.tokenizer,
        }[route.path]

    async def health(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send_json(send, 200, {"status": "ok"})

    async def version(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send_json(send, 200, {"version": __version__})

    async def ready(self, scope: Scope, receive: Receive, send: Send) -> None:
        statuses = [upstream.status for upstream in self._upstreams]
        workers = [
            {
                "name": one.name,
                "role": one.role,
                "state": one.state.value,
                "detail": one.detail or one.refusal,
                "models": list(one.facts.models),
            }
            for one in statuses
        ]
        # One that could not be loaded must not have a load balancer take the others out of service.
        late = [one for one in self._groups if not one.is_ready and not one.facts.loads_on_demand]
        if not late:
            await send_json(send, 200, {"status": "ready", "workers": workers})
            return
        try:
            late[0].upstreams[0].check_ready()
        except ApiError as error:
            scope[RECORD].error_code = error.code
            body = {"status": "not_ready", "workers": workers, **json.loads(error.body())}
            headers = [(name.encode(), value.encode()) for name, value in error.headers.items()]
            await send_body(send, 503, json.dumps(body, ensure_ascii=False).encode(), headers=headers)

    async def models(self, scope: Scope, receive: Receive, send: Send) -> None:
        entry = self._entry(scope)
        may_ask = None if entry is None else entry.models
        cards = [
            self._card(replicas, facts, name)
            for replicas, facts in [(one, one.facts) for one in self._groups]
            for name in facts.names
            if may_ask is None or any(one in may_ask for one in model_names(facts, name))
        ]
        await send_json(send, 200, {"object": "list", "data": cards})

    async def model(self, scope: Scope, receive: Receive, send: Send) -> None:
        name = scope["path_params"]["model"]
        (replicas, facts), entry = named(self._groups, name), self._entry(scope)
        if entry is not None:
            check_model(entry, model_names(facts, name))
        await send_json(send, 200, self._card(replicas, facts, name))

    async def metrics(self, scope: Scope, receive: Receive, send: Send) -> None:
        ready = [upstream for upstream in self._upstreams if upstream.is_up]
        own = await (self._exposition() if self._exposition else exposition_of(self._metrics, ready))
        texts = await asyncio.gather(*(upstream.get("/metrics") for upstream in ready), return_exceptions=True)
        of_workers = []
        for upstream, text in zip(ready, texts, strict=True):
            if isinstance(text, bytes):
                of_workers.append((upstream.name, text.decode(errors="replace")))
            else:
                self._metrics.count_error("worker_metrics_unreachable")
        body = exposition.merge(own, of_workers)
        await send_body(send, 200, body.encode(), exposition.CONTENT_TYPE)

    async def memory(self, scope: Scope, receive: Receive, send: Send) -> None:
        entries = await asyncio.gather(*(self._memory_of(upstream) for upstream in self._upstreams))
        await send_json(send, 200, {"object": "list", "data": entries, "host": await self._host_memory()})

    async def report(self, scope: Scope, receive: Receive, send: Send) -> None:
        entries = await asyncio.gather(*(self._report_of(upstream) for upstream in self._upstreams))
        about = {"object": "list", "version": __version__, "run": self._runs.run_id}
        await send_json(send, 200, {**about, "data": entries, "host": await self._host_memory()})

    async def report_page(self, scope: Scope, receive: Receive, send: Send) -> None:
        by_worker = {upstream.name: await self._live_figures_of(upstream) for upstream in self._upstreams}
        page = await self._reports.page(scope.get("path_params", {}).get("run"), by_worker)
        headers = [(b"content-security-policy", POLICY), (b"cache-control", b"no-store")]
        await send_body(send, 200, page, HTML, headers)

    async def runs(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send_json(send, 200, await self._runs.documents())

    async def run(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send_json(send, 200, await self._runs.document(scope["path_params"]["run"]))

    async def trainings(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send_json(send, 200, await self._runs.trainings())

    async def tokenizer(self, scope: Scope, receive: Receive, send: Send) -> None:
        name = scope["path_params"]["model"]
        folder = named(self._groups, name)[1].tokenizer
        if folder is None:
            raise ApiError(404, f"the tokenizer of {name[:100]!r} is not on disk here", "no_tokenizer", "model")
        files = await asyncio.to_thread(_tokenizer_files, folder)
        await send_json(send, 200, {"model": name, "files": files})

    async def openapi(self, scope: Scope, receive: Receive, send: Send) -> None:
        from qserve.gateway.openapi import DocumentedWorker, document  # only this route needs the response schemas

        workers = tuple(DocumentedWorker.of(replicas.facts) for replicas in self._groups)
        await send_body(send, 200, document(self._settings.needs_key, workers))

    async def _host_memory(self) -> list[dict[str, Any]]:
        return [] if self._host is None else await self._host()

    async def _memory_of(self, upstream: Upstream) -> dict[str, Any]:
        status = upstream.status
        entry: dict[str, Any] = {"worker": upstream.name, "role": status.role, "state": status.state.value}
        if status.facts.plan is not None:
            entry["planned"] = status.facts.plan
        try:
            return {**entry, "memory": await upstream.memory()}
        except ApiError as error:
            return {**entry, "error": str(error)}

    async def _report_of(self, upstream: Upstream) -> dict[str, Any]:
        """The memory entry, with start phases, restarts and the worker's own report."""
        status = upstream.status
        entry = {
            **await self._memory_of(upstream),
            "models": list(status.facts.models),
            "start_phases_s": dict(status.start_phases_s),
            "num_restarts": status.num_restarts,
        }
        if latency := await _latency_of(upstream):
            entry["latency"] = latency
        work = await self._work_of(upstream)
        return entry if work is None else {**entry, "work": work}

    async def _live_figures_of(self, upstream: Upstream) -> dict[str, Any]:
        """A worker's live figures, which are not in the store."""
        found = {"work": await self._work_of(upstream), "latency": await _latency_of(upstream)}
        return {name: value for name, value in found.items() if value}

    async def _work_of(self, upstream: Upstream) -> Any:
        """The worker's report on its own work; None if it has none, or does not answer."""
        if not upstream.status.facts.has_report:
            return None
        with contextlib.suppress(ApiError, ValueError):
            return json.loads(await upstream.get("/v1/qserve/report"))
        return None

    def _entry(self, scope: Scope) -> KeyEntry | None:
        """The key with a name of this request."""
        return None if self._keys is None else self._keys.of_request(owner_of(scope))

    def _card(self, replicas: Replicas, facts: WorkerFacts, name: str) -> dict[str, Any]:
        is_adapter = name in facts.adapters
        return {
            "id": name,
            "object": "model",
            "created": self._started_unix_s,
            "owned_by": "qserve",
            "root": name if is_adapter else facts.models[0],
            "parent": facts.models[0] if is_adapter else None,
            "max_model_len": facts.max_model_len,
            "kind": facts.role,
            "state": _state_of(replicas),
            "planned_bytes": _planned_bytes(facts),
        }


def _state_of(replicas: Replicas) -> str:
    """Of the replica that is nearest to an answer."""
    states = [one.status.state.value for one in replicas.upstreams]
    return WorkerState.READY.value if WorkerState.READY.value in states else states[0]


def _planned_bytes(facts: WorkerFacts) -> int | None:
    """What one replica takes on all its devices; None without a plan."""
    devices = (facts.plan or {}).get("devices")
    return None if devices is None else sum(one[f"{term}_bytes"] for one in devices for term in COLUMNS)


async def _latency_of(upstream: Upstream) -> dict[str, Any]:
    """Planned and measured latency of its requests; empty without a plan or requests."""
    latency = upstream.status.latency
    return dict(await latency()) if latency is not None else {}


def _tokenizer_files(folder: Path) -> dict[str, str]:
    """The files of the tokenizer, and no others of the checkpoint's folder."""
    return {name: (folder / name).read_text() for name in _TOKENIZER_FILES if (folder / name).is_file()}
