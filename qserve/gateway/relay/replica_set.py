"""The replicas of one model in the process that decides: choice of a replica, queues, outstanding work.

A single replica is the usual case; then there is no choice: it is used, or its state is the error.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Self

from qserve.gateway.relay.admission import Places, Requester, Requeued
from qserve.gateway.relay.replicas import Replicas, RoutedRequest
from qserve.gateway.relay.upstream import Life, Upstream
from qserve.gateway.routing.pace import Answered, Expected, planned_of
from qserve.gateway.routing.poison import PoisonRequests
from qserve.gateway.routing.prefix import prefix_blocks
from qserve.gateway.routing.router import RequestTokens, Router
from qserve.wire.errors import ApiError
from qserve.worker.base import WorkerFacts, WorkerState

__all__ = ["ReplicaSet", "by_group", "replica_sets", "routed"]

# How long a request waits while all replicas restart: qserve's own workers are back within seconds, an engine with a
# large model within a minute or two. The bound on the queue includes these requests.
_RESTART_WAIT_S = 120.0
_LOOK_S = 0.05
# Hashing takes 1 us per kB; the beginning and the length of a body identify it.
_HASHED_BYTES = 64 * 1024
# Ends waits at a replica that goes out of service: another one may answer.
_ELSEWHERE = frozenset({"worker_not_ready", "draining", "memory_low"})


class ReplicaSet(Replicas):
    """Workers that serve the same model. `upstreams` may grow and shrink by `add` and `remove` while it serves."""

    def __init__(self, upstreams: Sequence[Upstream]) -> None:
        self.router = Router()
        self.poison = PoisonRequests(is_outside=self._was_outside)
        self.alone = asyncio.Lock()
        """Held by the request that runs alone after it was in flight in two deaths of workers."""
        self._num_waiting_for_restart = 0
        super().__init__(upstreams)

    def add(self, upstream: Upstream) -> None:
        super().add(upstream)
        self.router.add(upstream.name, upstream.status.facts.max_num_seqs, upstream.load)

    def remove(self, upstream: Upstream) -> None:
        super().remove(upstream)
        self.router.remove(upstream.name)

    def num_waiting_elsewhere(self, upstream: Upstream) -> int:
        """Requests in the queues of the others, and those that wait for a replica to come back."""
        if self.is_single:
            return self._num_waiting_for_restart
        return self._num_waiting_for_restart + sum(one.num_waiting for one in self.upstreams if one is not upstream)

    def routed(
        self,
        path: str,
        body: bytes,
        model: str | None,
        num_sequences: int,
        max_tokens: int | None,
        salt: str = "",
        client: str = "",
        *,
        is_more: bool = False,
    ) -> RoutedRequest:
        request = routed(
            path, body, model, num_sequences, max_tokens, salt, client, is_single=self.is_single, is_more=is_more
        )
        if self.poison.cases:
            self.poison.check(request.digest)
        return request

    def slot(self, request: RoutedRequest, without: Collection[Life] = (), *, background: bool = False) -> _LocalSlot:
        return _LocalSlot(self, request, without, background)

    async def introduced(self) -> WorkerFacts:
        (upstream,) = self.upstreams
        upstream.load.num_wanting += 1
        try:
            while upstream.status.is_awaited:  # it may leave again before this request is told that it was there
                await upstream.until_loaded()
        finally:
            upstream.load.num_wanting -= 1
        upstream.check_ready()
        return upstream.status.facts

    def _was_outside(self, death: Life) -> bool:
        name, num_restarts = death
        return any(one.name == name and num_restarts in one.status.outside_deaths for one in self.upstreams)

    async def died(self, request: RoutedRequest, death: Life) -> bool:
        return self.poison.died(request.digest, death)

    async def choose(self, request: RoutedRequest, without: Collection[Life] = ()) -> Upstream:
        """The chosen replica, which may not be ready where it is the only one.

        503 if none is available, also after a wait for one that restarts; 429 if many wait.
        """
        if self.is_single:  # the usual case, on the hot path
            return self.upstreams[0]
        while (chosen := self._chosen_now(request, without)) is None:
            await self._until_ready(without)
        return chosen

    def observe(self) -> None:
        """Applies state changes: a replica that left loses its queue, a restarted one its known prefixes."""
        for upstream in self.upstreams:
            upstream.observe()
            self.router.limit(upstream.name, upstream.status.facts.max_num_seqs)
            if not upstream.is_up and upstream.status.state is not WorkerState.DRAINING:
                self.router.forget(upstream.name)
            self.even_out(upstream)

    def all_free_in_background(self) -> tuple[int, Mapping[str, int]]:
        """`free_in_background` of a client that has nothing here, and of all that have."""
        some = [one.admission.all_free_in_background() for one in self.upstreams if one.is_ready]
        clients = {client for _, free in some for client in free}
        return sum(free for free, _ in some), {
            client: sum(of_client.get(client, free) for free, of_client in some) for client in clients
        }

    def even_out(self, free: Upstream) -> None:
        """Moves requests that wait elsewhere to `free` while it has slots, from the longest queue first."""
        if self.is_single or not free.is_ready or not free.admission.has_free_slots:
            return
        num_promised, num_slots = 0, 1
        while num_slots:
            fullest = max(self.upstreams, key=lambda one: one.num_waiting)
            num_slots = fullest.admission.move_first(free, free.admission, num_promised)
            num_promised += num_slots

    def _chosen_now(self, request: RoutedRequest, without: Collection[Life]) -> Upstream | None:
        ready = {one.name: one for one in self.upstreams if one.is_ready and one.life not in without}
        return ready[self.router.choose(request.blocks, ready).name] if ready else None

    async def _until_ready(self, without: Collection[Life]) -> None:
        first = self.upstreams[0]
        first.admission.check_queue(self.num_waiting_elsewhere(first))
        self._num_waiting_for_restart += 1
        deadline_s = time.monotonic() + _RESTART_WAIT_S
        try:
            while self._is_coming(without) and time.monotonic() < deadline_s:
                await asyncio.sleep(_LOOK_S)
                if any(one.is_ready and one.life not in without for one in self.upstreams):
                    return
        finally:
            self._num_waiting_for_restart -= 1
        for upstream in self.upstreams:
            upstream.check_ready()
        message = "the other replicas take no requests now; send the request again"
        raise ApiError(503, message, "worker_not_ready", retry_after_s=5)


class _LocalSlot:
    """One request at a replica: its slots in the admission, and its tokens in the router."""

    __slots__ = (
        "_background",
        "_first_token_s",
        "_granted_s",
        "_is_alone",
        "_left",
        "_num_beside",
        "_places",
        "_prompt",
        "_replicas",
        "_request",
        "_told",
        "_without",
        "upstream",
    )

    def __init__(
        self, replicas: ReplicaSet, request: RoutedRequest, without: Collection[Life], background: bool
    ) -> None:
        self._replicas = replicas
        self._request = request
        self._without = without
        self._background = background
        self._places: Places | None = None
        self._prompt = self._left = 0
        self._told: RequestTokens | None = None
        self._is_alone = False

    async def __aenter__(self) -> Self:
        poison, digest = self._replicas.poison, self._request.digest
        if poison.cases and poison.must_run_alone(digest):
            await self._replicas.alone.acquire()
            self._is_alone = True
        try:
            await self._find()
        except BaseException:
            if self._is_alone:
                self._is_no_longer_alone()
            raise
        if poison.cases:
            poison.begins(digest, self.upstream.life)
        return self

    async def _find(self) -> None:
        """Chooses a replica and waits in its queue for a slot."""
        to: Upstream | None = None
        while True:
            self.upstream = to or await self._replicas.choose(self._request, self._without)
            self._count()
            try:
                await self._enter()
            except Requeued as moved:
                self._end()
                to = moved.to
            except ApiError as error:
                self._end()
                if self._replicas.is_single or error.code not in _ELSEWHERE:
                    raise
                to = None
            except BaseException:
                self._end()
                raise
            else:
                return

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._places is not None:
            held_s = None if kind else time.perf_counter() - self._granted_s
            self.upstream.admission.leave(self._places, held_s)
            if self._told is not None and held_s is not None:
                self._learn_pace(self._told, held_s)
        self.upstream.load.num_requests -= 1
        self._end()
        if self._told is not None:
            request = self._request
            self._replicas.router.estimates.learn(
                request.num_bytes, request.num_sequences, request.max_tokens, self._told
            )
        if self._is_alone:
            self._is_no_longer_alone()

    def has_begun(self) -> None:
        self._replicas.router.has_done(self.upstream.name, self._prompt)
        self._left -= self._prompt
        self._prompt = 0

    def is_answered(self, tokens: RequestTokens, first_token_s: float | None) -> None:
        self._told, self._first_token_s = tokens, first_token_s
        if self._replicas.poison.cases:
            self._replicas.poison.answered(self._request.digest)

    async def _enter(self) -> None:
        """Waits in the queue of `upstream`, if there is one."""
        upstream, num_sequences = self.upstream, self._request.num_sequences
        if not upstream.is_ready and not upstream.status.is_awaited:
            upstream.check_ready()
        if not num_sequences:
            await self._until_loaded()
        else:
            is_wide = self._request.is_portion or (num_sequences > 1 and self._replicas.role == "chat")
            requester = Requester(self._request.client, self._background, is_wide, self._request.is_urgent)
            num_waiting_elsewhere = self._replicas.num_waiting_elsewhere(upstream)
            deadline, num_tokens = self._request.deadline, self._left
            entering = partial(self._admitted, requester, num_waiting_elsewhere, num_tokens)
            if deadline is None:
                self._places = await entering()
            else:
                expected = self._expected(requester, deadline.num_sequences)
                self._places = await deadline.keeping(expected, self._request.max_tokens, entering)
            self._granted_s, self._num_beside = time.perf_counter(), upstream.num_running_sequences
            if not upstream.is_ready:  # since the queue was left
                upstream.admission.leave(self._places)
                self._places = None
                if upstream.status.is_awaited:
                    raise Requeued(upstream)
                upstream.check_ready()
        upstream.load.num_requests += 1

    async def _admitted(self, requester: Requester, num_waiting_elsewhere: int, num_tokens: int) -> Places:
        """Its places, once the model is in memory."""
        await self._until_loaded(num_waiting_elsewhere)
        num_sequences = self._request.num_sequences
        return await self.upstream.admission.enter(num_sequences, requester, num_waiting_elsewhere, num_tokens)

    async def _until_loaded(self, num_waiting_elsewhere: int = 0) -> None:
        if self.upstream.status.is_awaited:
            await self.upstream.until_loaded(num_waiting_elsewhere)
            self.upstream.check_ready()

    def _expected(self, requester: Requester, num_of_all: int) -> Expected:
        """What the request will take from now on. `num_of_all`: sequences of the whole, of which this may be a part."""
        upstream, request, admission = self.upstream, self._request, self.upstream.admission
        num_rounds = 1 if request.is_more else math.ceil(num_of_all / admission.num_slots)
        return upstream.pace.expected(
            admission.expected_wait_s(request.num_sequences, requester, self._left),
            self._prompt,
            request.max_tokens,
            min(admission.num_slots, upstream.num_running_sequences + request.num_sequences),
            time.perf_counter(),
            planned_of(upstream.status.facts.plan),
            num_rounds,
        )

    def _learn_pace(self, told: RequestTokens, held_s: float) -> None:
        request, estimates = self._request, self._replicas.router.estimates
        prompt = told.prompt or estimates.of(request.num_bytes, request.num_sequences, request.max_tokens).prompt
        each = told.answer / request.num_sequences
        answered = Answered(prompt, each, self._num_beside, self._first_token_s, held_s)
        self.upstream.pace.learn(answered, time.perf_counter())

    def _count(self) -> None:
        """Counts the request's tokens as outstanding at the replica."""
        request, router = self._request, self._replicas.router
        tokens = router.estimates.of(request.num_bytes, request.num_sequences, request.max_tokens)
        counted = router.begin(self.upstream.name, request.blocks, tokens)
        self._prompt, self._left = counted.prompt, counted.prompt + counted.answer

    def _is_no_longer_alone(self) -> None:
        self._is_alone = False
        self._replicas.alone.release()

    def _end(self) -> None:
        self._replicas.router.end(self.upstream.name, self._left)
        if not self._replicas.is_single:
            self._replicas.even_out(self.upstream)


def routed(
    path: str,
    body: bytes,
    model: str | None,
    num_sequences: int,
    max_tokens: int | None,
    salt: str = "",
    client: str = "",
    *,
    is_single: bool,
    is_more: bool = False,
) -> RoutedRequest:
    """Routing data of a request. Hashes are comparable between processes with one PYTHONHASHSEED."""
    digest = hash((path, len(body), body if len(body) <= _HASHED_BYTES else body[:_HASHED_BYTES]))
    blocks = () if is_single or not num_sequences else prefix_blocks(body, model, salt)
    return RoutedRequest(blocks, len(body), num_sequences, max_tokens, digest, client, is_more)


def by_group(upstreams: Sequence[Upstream]) -> list[list[Upstream]]:
    """Upstreams by group, in order of first appearance."""
    groups: dict[str, list[Upstream]] = {}
    for upstream in upstreams:
        groups.setdefault(upstream.status.group, []).append(upstream)
    return list(groups.values())


def replica_sets(upstreams: Sequence[Upstream]) -> list[ReplicaSet]:
    """One replica set per group."""
    return [ReplicaSet(replicas) for replicas in by_group(upstreams)]
