"""One worker in the gateway: its connection pool, its queue, and its state."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from qserve.errors import QserveError
from qserve.gateway.relay.admission import Admission
from qserve.gateway.relay.cancel_scope import Down
from qserve.gateway.relay.client import ConnectionBroke, Unreachable, WorkerClient
from qserve.gateway.routing.pace import Pace
from qserve.gateway.settings import GatewaySettings
from qserve.wire.errors import ApiError
from qserve.worker.base import WorkerFacts, WorkerState, WorkerStatus

__all__ = ["Life", "Observed", "Upstream", "watch"]

Life = tuple[str, int]
"""A worker's name, and the number of its restarts."""


_SCRAPE_TIMEOUT_S = 2.0
_LOOK_S = 0.05
# Memory comes back as answers end; a client that waits less is refused again.
_RETRY_REFUSED_S = 10
# A measurement trims the heap and reads page tables: too costly for each scraper.
_MEASURED_FOR_S = 10.0
_RETRY_AFTER_S = {
    WorkerState.STARTING: 5,
    WorkerState.RESTARTING: 5,
    WorkerState.IDLE: 5,
    WorkerState.UNLOADING: 10,
    WorkerState.DRAINING: 10,
    WorkerState.FAILED: 60,
}


class Upstream:
    """A worker: its `status` (which the supervisor keeps writing to), `admission`, `pace` and `client`."""

    def __init__(self, status: WorkerStatus, settings: GatewaySettings) -> None:
        self.name = status.name
        self.status = status
        self.load = status.load
        facts = status.facts
        self.admission = Admission(facts.max_num_seqs, settings.max_queue, shares_places=facts.shares_places)
        self.pace = Pace()
        self._load_wait_s = settings.load_wait_s
        self._num_awaiting_load = 0
        self._is_loaded: asyncio.Event | None = None  # while requests wait for that
        self._connect_timeout_s = settings.connect_timeout_s
        self._connected = facts
        self._client = self._client_of(facts)
        self.measured: Mapping[str, Any] = {}
        self._measured_s = -_MEASURED_FOR_S
        self.down = Down()
        """Set when the current process is given up. A relay keeps the one that it started with."""

    @property
    def client(self) -> WorkerClient:
        """The connection pool to the worker's current address, which may change with a restart."""
        facts, before = self.status.facts, self._connected
        if facts is not before:
            if (facts.address, facts.key) != (before.address, before.key):
                self._client.close()
                self._client = self._client_of(facts)
            self._connected = facts
        return self._client

    def _client_of(self, facts: WorkerFacts) -> WorkerClient:
        return WorkerClient(facts.address, facts.key, self._connect_timeout_s)

    @property
    def life(self) -> Life:
        """Identifies the running process: changes with each restart."""
        return self.name, self.status.num_restarts

    @property
    def is_up(self) -> bool:
        """Whether it runs, and answers what is asked about itself."""
        return self.status.state is WorkerState.READY

    @property
    def is_ready(self) -> bool:
        """Whether it takes new requests."""
        return self.is_up and not self.status.refusal

    @property
    def num_running_requests(self) -> int:
        return self.admission.num_running_requests

    @property
    def num_running_sequences(self) -> int:
        return self.admission.num_running_sequences

    @property
    def num_waiting(self) -> int:
        return self.admission.num_waiting + self._num_awaiting_load

    async def until_loaded(self, num_waiting_elsewhere: int = 0) -> None:
        """Waits while the model is not in memory, if it is loaded on demand; in order of arrival.

        429 if too many wait, 503 after `load_wait_s`. Once it failed to load, `check_ready` says so.
        """
        if not self.status.is_awaited:
            return
        self.admission.check_queue(self._num_awaiting_load + num_waiting_elsewhere)
        self._num_awaiting_load += 1
        try:
            async with asyncio.timeout(self._load_wait_s):
                while self.status.is_awaited:
                    await self._loaded_event().wait()
        except TimeoutError:
            message = f"the model {self.status.facts.models[0]!r} was not loaded within {self._load_wait_s:g} s"
            raise ApiError(503, f"{message}: {self.status.detail}", "model_not_loaded", retry_after_s=30) from None
        finally:
            self._num_awaiting_load -= 1

    def _loaded_event(self) -> asyncio.Event:
        """Set once the model is no longer awaited; one task looks for all requests."""
        if self._is_loaded is None or self._is_loaded.is_set():
            self._is_loaded = asyncio.Event()
            self._looking = asyncio.create_task(self._set_when_loaded(self._is_loaded))
        return self._is_loaded

    async def _set_when_loaded(self, event: asyncio.Event) -> None:
        while self.status.is_awaited and self._num_awaiting_load:
            await asyncio.sleep(_LOOK_S)
        event.set()

    def check_ready(self) -> None:
        """503 unless it takes requests: with the worker's state, or why it refuses them."""
        self.check_up()
        if self.status.refusal:
            message = f"{self.status.facts.models[0]!r} takes no new requests now: {self.status.refusal}"
            raise ApiError(503, message, "memory_low", retry_after_s=_RETRY_REFUSED_S)

    def check_up(self) -> None:
        """503 with the worker's state unless it runs."""
        if not self.is_up:
            state = self.status.state
            code = "draining" if state is WorkerState.DRAINING else "worker_not_ready"
            message = f"the worker for {self.status.facts.models[0]!r} is {state.value}: {self.status.detail}"
            raise ApiError(503, message, code, retry_after_s=_RETRY_AFTER_S[state])

    def observe(self) -> None:
        """Applies state changes: a worker that takes no new requests loses its queue, a dead one all its requests.

        A worker may come back with fewer slots.
        """
        self.admission.num_slots = self.status.facts.max_num_seqs
        if self.is_ready:
            return
        if self.status.is_awaited:
            self.admission.requeue(self)
            if self.status.state is not WorkerState.UNLOADING:  # it finishes its requests
                self._give_up()
            return
        try:
            self.check_ready()
        except ApiError as error:
            self.admission.turn_away(error)
        if self.status.state not in (WorkerState.READY, WorkerState.DRAINING):
            self._give_up()

    def _give_up(self) -> None:
        """The running process: nothing comes from it any more."""
        self.down.set()
        self.down = Down()

    async def memory(self) -> Mapping[str, Any]:
        """Current memory of the worker, measured by itself or its supervisor. Raises ApiError if that fails."""
        try:
            if self.status.memory is None:
                self.measured = json.loads(await self.get("/v1/qserve/memory"))
            else:
                self.check_up()
                self.measured = await self.status.memory()
        except (QserveError, ValueError, OSError) as error:
            raise ApiError(502, f"the worker did not report its memory: {error}", "worker_error") from error
        self._measured_s = time.monotonic()
        return self.measured

    async def refresh_measured(self) -> None:
        """Refreshes `measured` for a scrape, at most every 10 s; keeps the last value if the worker does not answer."""
        if time.monotonic() - self._measured_s > _MEASURED_FOR_S:
            with contextlib.suppress(ApiError, TimeoutError):
                async with asyncio.timeout(_SCRAPE_TIMEOUT_S):
                    await self.memory()

    async def get(self, path: str) -> bytes:
        """GET of a small document from the worker. Raises ApiError after two seconds."""
        self.check_up()
        try:
            async with asyncio.timeout(_SCRAPE_TIMEOUT_S), self.client.request("GET", path, "gateway") as reply:
                body = await reply.read()
        except (Unreachable, ConnectionBroke, TimeoutError) as error:
            why = str(error) or f"nothing came within {_SCRAPE_TIMEOUT_S:g} s"
            raise ApiError(502, f"the worker did not answer GET {path}: {why}", "worker_unreachable") from error
        if reply.status != 200:
            raise ApiError(502, f"the worker answered {reply.status} to GET {path}", "worker_error")
        return body


class Observed(Protocol):
    """Something that applies state changes written by the supervisor."""

    def observe(self) -> None: ...


async def watch(observed: Iterable[Observed], interval_s: float) -> None:
    """Polls the states for ever: the supervisor only writes a field and need not notify anyone."""
    while True:
        for one in observed:
            one.observe()
        await asyncio.sleep(interval_s)
