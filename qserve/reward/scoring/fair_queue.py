"""A fair queue of texts: each request gets the same share of tokens.

Fair queueing by tokens: every request has a clock that its taken tokens move forward, and the one whose clock is
furthest behind goes next. A request that comes when others are busy begins at the clock of the one that is served, so
that it neither waits behind what they sent before nor is paid for the time when it was not there.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

__all__ = ["FairQueue", "Flow"]

T = TypeVar("T")


@dataclass(eq=False)
class Flow:
    """One request, which may hand its jobs over in several portions. `clock` counts tokens."""

    clock: int = 0


@dataclass(eq=False)
class _Waiting(Generic[T]):
    flow: Flow
    jobs: deque[T] = field(default_factory=deque)


class FairQueue(Generic[T]):
    """Not safe for threads: its owner holds a lock. `cost` is a job's tokens, at least 1."""

    def __init__(self, cost: Callable[[T], int]) -> None:
        self._cost = cost
        self._waiting: dict[Flow, _Waiting[T]] = {}
        self._clock = 0
        self._num_tokens = 0

    def __bool__(self) -> bool:
        return bool(self._waiting)

    @property
    def num_tokens(self) -> int:
        """Of all that waits."""
        return self._num_tokens

    def put(self, flow: Flow, jobs: Sequence[T]) -> None:
        """Behind what `flow` has waiting; others' jobs keep their order."""
        if not jobs:
            return
        if flow not in self._waiting:
            flow.clock = max(flow.clock, self._clock)
            self._waiting[flow] = _Waiting(flow)
        self._waiting[flow].jobs.extend(jobs)
        self._num_tokens += sum(map(self._cost, jobs))

    def drop(self, is_dropped: Callable[[T], bool]) -> None:
        """Forget what nobody waits for any more."""
        for one in list(self._waiting.values()):
            self._keep(one, [job for job in one.jobs if not is_dropped(job)])

    def clear(self) -> list[T]:
        """Forget all of it; what it was."""
        jobs = list(self._in_order())
        self.drop(lambda _: True)
        return jobs

    def window(self, max_tokens: int) -> list[T]:
        """The jobs that go next, in fair order, until they hold more than `max_tokens`. They stay in the queue."""
        chosen: list[T] = []
        tokens = 0
        for job in self._in_order():
            if chosen and tokens > max_tokens:
                break
            chosen.append(job)
            tokens += self._cost(job)
        return chosen

    def take(self, jobs: Collection[T]) -> None:
        """Remove `jobs`, which a `window` named, and move the clocks of their requests."""
        left = set(map(id, jobs))
        for one in list(self._waiting.values()):
            if not left:
                break
            taken = [job for job in one.jobs if id(job) in left]
            if taken:
                one.flow.clock += sum(map(self._cost, taken))
                left.difference_update(map(id, taken))
                gone = set(map(id, taken))
                self._keep(one, [job for job in one.jobs if id(job) not in gone])
        if self._waiting:
            self._clock = max(self._clock, min(flow.clock for flow in self._waiting))

    def _keep(self, one: _Waiting[T], kept: list[T]) -> None:
        self._num_tokens -= sum(map(self._cost, one.jobs)) - sum(map(self._cost, kept))
        one.jobs = deque(kept)
        if not kept:
            del self._waiting[one.flow]

    def _in_order(self) -> Iterator[T]:
        """Every job: always the next one of the request whose clock, with what was named of it, is furthest behind."""
        heap = [(one.flow.clock, index, iter(one.jobs)) for index, one in enumerate(self._waiting.values())]
        heapq.heapify(heap)
        while heap:
            clock, index, jobs = heap[0]
            job = next(jobs, None)
            if job is None:
                heapq.heappop(heap)
                continue
            heapq.heapreplace(heap, (clock + self._cost(job), index, jobs))
            yield job
