"""Routes that workers serve: the body is read and checked once, and forwarded byte for byte.

Except for what an engine's wire format rewrites (vLLM's: JSON schemas, empty lists of tools), and its `cache_salt`
(`gateway/relay/cache_salts.py`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from functools import partial
from typing import Any

from starlette.types import Receive, Scope, Send

from qserve.gateway.auth import owner_of, share_of
from qserve.gateway.bodies import Bodies, Body
from qserve.gateway.dispatch import Endpoint
from qserve.gateway.keys.book import NamedKeys, check_model
from qserve.gateway.keys.entries import KeyEntry
from qserve.gateway.large_bodies import LARGE_BYTES, LargeBodies, LargeBody
from qserve.gateway.relay.cache_salts import CacheSalts, with_cache_salt
from qserve.gateway.relay.call import ON_QUEUED, Call
from qserve.gateway.relay.deadline import Deadline
from qserve.gateway.relay.exchange import Exchange
from qserve.gateway.relay.journal import Journals, StreamJournal
from qserve.gateway.relay.portioned import PortionedExchange, PortionedMetrics
from qserve.gateway.relay.portions import Portions, portions_of
from qserve.gateway.relay.replicas import Replicas
from qserve.gateway.relay.serving import Served, model_names, named, serving
from qserve.gateway.routes import RelayedRoute
from qserve.gateway.settings import GatewaySettings
from qserve.gateway.telemetry.metrics import GatewayMetrics
from qserve.gateway.telemetry.record import RECORD, RequestRecord
from qserve.wire.body_scan import read_object, utf8_json
from qserve.wire.reward.fields import BULK_SLOTS
from qserve.worker.base import WorkerFacts
from qserve.worker.wire import CheckedRequest
from qserve.worker.wires import wire_named

__all__ = ["Elsewhere", "RelayedEndpoints"]

Elsewhere = Callable[[Scope, Receive, Send, Body], Awaitable[bool]]
"""Answers a request in another way than by relaying it now; False: it is none of those."""

# Of an engine's slots one request may take so many at once; more sequences are asked for one by one.
_SHARE_OF_ONE = 8


class RelayedEndpoints:
    """Endpoints of all `RelayedRoute`s."""

    def __init__(
        self,
        settings: GatewaySettings,
        groups: Sequence[Replicas],
        metrics: GatewayMetrics,
        bodies: Bodies,
        salts: CacheSalts,
        elsewhere: Mapping[str, Elsewhere] | None = None,
        keys: NamedKeys | None = None,
    ) -> None:
        """`elsewhere`: by path. `keys`: those with names, where the gateway has a file of them."""
        self._keys = keys
        self._settings = settings
        self._groups = groups
        self._metrics = metrics
        self._bodies = bodies
        self._portioned_metrics = PortionedMetrics(metrics)
        self._salts = salts
        self._elsewhere = elsewhere or {}
        self._large_bodies = LargeBodies()
        self._journals = Journals()
        metrics.journal_bytes = lambda: self._journals.num_bytes

    async def close(self) -> None:
        """Ends the processes that were started for requests."""
        await self._large_bodies.close()

    def of(self, route: RelayedRoute) -> Endpoint:
        """The endpoint of this route."""
        is_elsewhere = self._elsewhere.get(route.path)

        async def endpoint(scope: Scope, receive: Receive, send: Send) -> None:
            async with self._bodies.read(scope, receive, is_json=True) as body:
                body.data = utf8_json(body.data)
                if is_elsewhere is not None and await is_elsewhere(scope, receive, send, body):
                    return
                served, checked = await self._checked(route, body.data)
                facts = served.facts
                entry = None if self._keys is None else self._keys.of_request(owner_of(scope))
                if entry is not None:
                    check_model(entry, model_names(facts, checked.model))
                body.data = body.data if checked.body is None else checked.body
                if route.names_model and checked.model is not None and checked.model not in facts.names:
                    named(self._groups, checked.model)
                is_bulk = facts.role != "chat" and checked.num_sequences >= BULK_SLOTS
                client, owner = share_of(scope), owner_of(scope)
                salt = self._salts.of(owner, checked.cache_salt)
                if salt is not None and checked.is_salted:
                    body.data = with_cache_salt(body.data, salt)
                call = Call(
                    route.method,
                    served.route.path or route.path,
                    checked.num_sequences,
                    route.dialect,
                    is_bulk,
                    checked.max_tokens,
                    client,
                    salt,
                    rewrite=served.route.rewrite,
                    deadline=Deadline.of(scope[RECORD], checked.num_sequences),
                    is_urgent=entry is not None and entry.priority == "high",
                    opens_early=route.streams and facts.loads_on_demand and _opens_early(served.replicas, body.data),
                )
                async with self._spending(entry, scope, call, len(body.data)):
                    if (portions := self._portions(facts, call, body.data)) is None:
                        exchange = self._exchange(served, call, body, checked.model, scope)
                        await exchange.run(receive, send)
                    else:
                        await self._portioned(served, call, checked.model, scope, portions).run(receive, send)

        return endpoint

    def _spending(
        self, entry: KeyEntry | None, scope: Scope, call: Call, num_bytes: int
    ) -> AbstractAsyncContextManager[None]:
        if entry is None or self._keys is None:
            return nullcontext()
        return self._keys.spending(entry, scope[RECORD], num_bytes, call.num_sequences, call.max_tokens)

    def _portions(self, facts: WorkerFacts, call: Call, body: bytes) -> Portions | None:
        """A request's portions, where its engine would begin all of them at once and they are no few of its slots."""
        few = max(1, facts.max_num_seqs // _SHARE_OF_ONE)
        if facts.shares_places or facts.role != "chat" or call.num_sequences <= few:
            return None
        return portions_of(call.path, body)

    def _portioned(
        self, served: Served, call: Call, model: str | None, scope: Scope, portions: Portions
    ) -> PortionedExchange:
        record = self._record(served.facts, model, scope)
        settings = self._settings
        return PortionedExchange(
            served.replicas,
            call,
            record,
            self._portioned_metrics,
            settings.client_stall_timeout_s,
            portions,
            partial(self._new_journal, call),
            settings.resume_wait_s,
        )

    async def _checked(self, route: RelayedRoute, body: bytes) -> tuple[Served, CheckedRequest]:
        """Who serves the request, and the checked request. Large bodies are checked in another process."""
        if len(body) <= LARGE_BYTES:
            model = read_object(body).get("model") if self._is_told_by_model(route) else None
            served = await self._addressed(route, model)
            return served, served.route.reader.read(body, route.path, served.facts)
        async with self._large_bodies.turn_of(body) as large:
            return await self._checked_elsewhere(route, large)

    async def _checked_elsewhere(self, route: RelayedRoute, large: LargeBody) -> tuple[Served, CheckedRequest]:
        model = await large.model() if self._is_told_by_model(route) else None
        served = await self._addressed(route, model)
        return served, await large.read(route, served.facts)

    def _is_told_by_model(self, route: RelayedRoute) -> bool:
        """Whether the body's `model` decides between several workers."""
        return route.names_model and len(self._groups) > 1

    async def _addressed(self, route: RelayedRoute, model: Any) -> Served:
        served = serving(self._groups, route, model if isinstance(model, str) else None)
        facts, reports_fields = served.facts, wire_named(served.facts.wire).reports_fields
        if facts.role != "chat" or reports_fields:
            served.replicas.check_ready(facts)
        if facts.loads_on_demand and reports_fields and facts.request_fields is None:
            await served.replicas.introduced()
            served = serving(self._groups, route, model if isinstance(model, str) else None)
        return served

    def _exchange(self, served: Served, call: Call, body: Body, model: str | None, scope: Scope) -> Exchange:
        record, settings = self._record(served.facts, model, scope), self._settings
        exchange = Exchange(
            served.replicas,
            call,
            body,
            record,
            self._metrics,
            settings.client_stall_timeout_s,
            self._new_journal(call),
            settings.resume_wait_s,
        )
        exchange.on_queued = scope.get(ON_QUEUED, exchange.on_queued)
        return exchange

    def _new_journal(self, call: Call) -> StreamJournal | None:
        """None where a stream ends with its worker."""
        is_continued = self._settings.resume_wait_s > 0 and call.num_sequences > 0
        return StreamJournal(self._journals) if is_continued else None

    @staticmethod
    def _record(facts: WorkerFacts, model: str | None, scope: Scope) -> RequestRecord:
        record: RequestRecord = scope[RECORD]
        record.model = model_names(facts, model)[0]
        record.worker = facts.name
        return record


def _opens_early(replicas: Replicas, body: bytes) -> bool:
    """Whether it is a stream that has to wait for its model to be loaded."""
    return not replicas.is_ready and read_object(body).get("stream") is True
