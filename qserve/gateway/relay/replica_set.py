"""The replicas of one role: which of them is asked, who waits where, and what every one has to do.

One replica is the usual case, and then nothing is chosen: it is asked, or says itself why it can't be.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from qserve.engine.base import WorkerEndpoint, WorkerState
from qserve.gateway.relay.upstream import Upstream
from qserve.gateway.routing.deadly import DeadlyRequests
from qserve.gateway.routing.outstanding import RequestTokens
from qserve.gateway.routing.prefix import prefix_blocks
from qserve.gateway.routing.router import Router
from qserve.wire.errors import ApiError

__all__ = ["Given", "ReplicaSet", "RoutedRequest", "replica_sets"]

# How long a request waits for a replica while all of them restart; a worker of our own is back within seconds.
_RESTART_WAIT_S = 30.0
_LOOK_S = 0.05
# Hashing a body takes a microsecond a kilobyte; its beginning and its length tell it from others.
_HASHED_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class RoutedRequest:
    """One request as the choice of a replica needs it: its prompt's blocks, its cost, and the hash of its bytes."""

    blocks: tuple[int, ...]
    num_bytes: int
    num_sequences: int
    max_tokens: int | None
    tokens: RequestTokens
    digest: int


class Given:
    """What one request counts for at the replica that has it."""

    __slots__ = ("_left", "_name", "_prompt", "_router")

    def __init__(self, router: Router, name: str, counted: RequestTokens) -> None:
        self._router = router
        self._name = name
        self._prompt = counted.prompt
        self._left = counted.total

    def has_begun(self) -> None:
        """The first byte of the answer came: the prompt is read."""
        self._router.has_done(self._name, self._prompt)
        self._left -= self._prompt
        self._prompt = 0

    def ends(self) -> None:
        """The replica has no more of it to do."""
        self._router.end(self._name, self._left)


class ReplicaSet:
    """Workers that serve the same model. `upstreams` may grow and shrink by `add` and `remove` while it serves."""

    def __init__(self, upstreams: Sequence[Upstream]) -> None:
        """At least one, all of one role."""
        self.role = upstreams[0].endpoint.role
        self.upstreams: list[Upstream] = []
        self.router = Router()
        self.deadly = DeadlyRequests()
        self._num_waiting_for_restart = 0
        for upstream in upstreams:
            self.add(upstream)

    def add(self, upstream: Upstream) -> None:
        """A further replica."""
        self.upstreams.append(upstream)
        self.router.add(upstream.name, upstream.endpoint.max_num_seqs)
        upstream.admission.count_waiting = lambda: self.num_waiting
        upstream.count_tokens = lambda: self.router.num_tokens(upstream.name)
        upstream.count_matched = lambda: self.router.num_matched(upstream.name)
        upstream.count_blocks = lambda: self.router.num_blocks(upstream.name)

    def remove(self, upstream: Upstream) -> None:
        """A replica that is gone for good; it must not run requests any more."""
        self.upstreams.remove(upstream)
        self.router.remove(upstream.name)

    @property
    def endpoint(self) -> WorkerEndpoint:
        """What holds for all of them (names, limits, fields of requests), as one that is ready tells it."""
        return next((one.endpoint for one in self.upstreams if one.is_ready), self.upstreams[0].endpoint)

    @property
    def is_single(self) -> bool:
        """Whether there is nothing to choose."""
        return len(self.upstreams) == 1

    @property
    def is_ready(self) -> bool:
        """Whether one of them takes requests."""
        return any(one.is_ready for one in self.upstreams)

    @property
    def num_waiting(self) -> int:
        """Requests in the queues of all, and those that wait for a replica to come back."""
        return self._num_waiting_for_restart + sum(one.num_waiting for one in self.upstreams)

    def check_ready(self) -> None:
        """503 with the supervisor's words unless one takes requests, or is about to."""
        if not self.is_ready and not (self._is_coming(()) and self.endpoint.request_fields is not None):
            self.upstreams[0].check_ready()

    def asked(
        self, path: str, body: bytes, model: str | None, num_sequences: int, max_tokens: int | None
    ) -> RoutedRequest:
        """What a request comes to. Raises ApiError 422 for one that was in flight when workers died."""
        digest = hash((path, len(body), body if len(body) <= _HASHED_BYTES else body[:_HASHED_BYTES]))
        self.deadly.check(digest)
        blocks = () if self.is_single or not num_sequences else prefix_blocks(body, model)
        tokens = self.router.estimates.of(len(body), num_sequences, max_tokens)
        return RoutedRequest(blocks, len(body), num_sequences, max_tokens, tokens, digest)

    async def choose(self, asked: RoutedRequest, without: Collection[Upstream] = ()) -> Upstream:
        """Who is to answer. 503 where nobody can, at once or after a wait for one that restarts; 429 if many wait."""
        if self.is_single:
            self.upstreams[0].check_ready()
            return self.upstreams[0]
        if self.chosen_now(asked, without) is None:
            await self._until_ready(without)
        chosen = self.chosen_now(asked, without)
        assert chosen is not None, "one is ready"
        return chosen

    def chosen_now(self, asked: RoutedRequest, without: Collection[Upstream] = ()) -> Upstream | None:
        """Who is to answer among those that take requests now; None where that is nobody."""
        if self.is_single:  # the usual case, in the path of every request
            return self.upstreams[0] if self.upstreams[0].is_ready and not without else None
        ready = {one.name: one for one in self.upstreams if one.is_ready and one not in without}
        return ready[self.router.choose(asked.blocks, ready).name] if ready else None

    @contextmanager
    def given(self, upstream: Upstream, asked: RoutedRequest) -> Iterator[Given]:
        """While `upstream` has the request: queued there, read, answered."""
        given = Given(self.router, upstream.name, self.router.begin(upstream.name, asked.blocks, asked.tokens))
        try:
            yield given
        finally:
            given.ends()

    def answered(self, asked: RoutedRequest, told: RequestTokens) -> None:
        """The request came to its end; `told` is what the worker reported, 0 where it did not."""
        self.deadly.answered(asked.digest)
        self.router.estimates.learn(asked.num_bytes, asked.num_sequences, asked.max_tokens, told)

    def observe(self) -> None:
        """Acts on what the supervisor wrote: who left loses its queue, and who restarts what it had seen."""
        for upstream in self.upstreams:
            upstream.observe()
            self.router.add(upstream.name, upstream.endpoint.max_num_seqs)
            upstream.endpoint.num_outstanding_tokens = self.router.num_tokens(upstream.name)
            if not upstream.is_ready and upstream.endpoint.state is not WorkerState.DRAINING:
                self.router.forget(upstream.name)
            self.even_out(upstream)

    def even_out(self, free: Upstream) -> None:
        """Who waits elsewhere while `free` has places goes there; those who wait longest first."""
        if self.is_single or not free.is_ready or not free.admission.has_free_places:
            return
        for _ in range(free.admission.num_places - free.admission.num_running_sequences):
            fullest = max(self.upstreams, key=lambda one: one.num_waiting)
            if not fullest.num_waiting:
                return
            fullest.admission.move_first(free)

    def _is_coming(self, without: Collection[Upstream]) -> bool:
        return not self.is_single and any(
            one.endpoint.state is WorkerState.RESTARTING for one in self.upstreams if one not in without
        )

    async def _until_ready(self, without: Collection[Upstream]) -> None:
        self.upstreams[0].admission.check_queue()
        self._num_waiting_for_restart += 1
        deadline_s = time.monotonic() + _RESTART_WAIT_S
        try:
            while self._is_coming(without) and time.monotonic() < deadline_s:
                await asyncio.sleep(_LOOK_S)
                if any(one.is_ready and one not in without for one in self.upstreams):
                    return
        finally:
            self._num_waiting_for_restart -= 1
        for upstream in self.upstreams:
            upstream.check_ready()
        message = "the replicas that were not asked yet take no requests now; send the request again"
        raise ApiError(503, message, "worker_not_ready", retry_after_s=5)


def replica_sets(upstreams: Sequence[Upstream]) -> list[ReplicaSet]:
    """One for each role, in the order in which the roles first come."""
    roles: dict[str, list[Upstream]] = {}
    for upstream in upstreams:
        roles.setdefault(upstream.endpoint.role, []).append(upstream)
    return [ReplicaSet(replicas) for replicas in roles.values()]
