"""Finds poison requests: those that crash the worker that runs them, among all that were in flight.

All requests of a worker that died are suspects. One that is in flight in a second death is refused, unless other
suspects were with it: then nobody knows which of them it was, and each is asked once more, one at a time. Who is in
flight in a third death is refused in any case. Workers that were killed from outside don't count, up to a number that
no request needs.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

from qserve.wire.errors import ApiError

__all__ = ["MOST_DEATHS", "MOST_KILLS", "PoisonRequests", "refusal"]

MOST_DEATHS = 3
MOST_KILLS = 20
"""Deaths in all: a request that somehow has its worker killed from outside ends, too."""
_HOLDS_FOR_S = 600.0
_MOST_HELD = 4096
_MOST_WORKERS = 256


@dataclass(frozen=True, slots=True)
class _Case:
    """The deaths of workers in which one request was in flight."""

    deaths: frozenset[Hashable] = frozenset()
    last_s: float = 0.0
    was_alone: bool = False


_INNOCENT = _Case()


class PoisonRequests:
    """Counts deaths by the hash of a request's bytes; answered and old requests are cleared."""

    def __init__(
        self, now: Callable[[], float] = time.monotonic, is_outside: Callable[[Any], bool] = lambda death: False
    ) -> None:
        """`is_outside`: whether a death came from outside; known a moment after it, so it is asked each time."""
        self._now = now
        self._is_outside = is_outside
        self.cases: OrderedDict[int, _Case] = OrderedDict()
        """By digest. Usually empty: then every request passes, and nobody need ask."""
        self._suspects_of: OrderedDict[Hashable, set[int]] = OrderedDict()  # by the life of a worker

    def begins(self, digest: int, life: Hashable) -> None:
        """The request is sent to a worker."""
        if self._num_deaths(digest):
            self._suspects_of.setdefault(life, set()).add(digest)
            _keep_newest(self._suspects_of, _MOST_WORKERS)

    def died(self, digest: int, death: Hashable) -> bool:
        """The request was in flight in this death of a worker; returns whether it is refused from now on."""
        deaths = self._case(digest).deaths | {death}
        was_alone = self._suspects_of.get(death, set()) <= {digest}
        self.cases[digest] = _Case(deaths, self._now(), was_alone)
        self.cases.move_to_end(digest)
        _keep_newest(self.cases, _MOST_HELD)
        return self._is_refused(digest)

    def answered(self, digest: int) -> None:
        """The request was answered: it does not crash workers."""
        if digest in self.cases:
            del self.cases[digest]
            for suspects in self._suspects_of.values():
                suspects.discard(digest)

    def check(self, digest: int) -> None:
        """Raises ApiError 422 for a poison request."""
        if self._is_refused(digest):
            raise refusal(len(self._case(digest).deaths))

    def must_run_alone(self, digest: int) -> bool:
        """Whether it must run without other suspects, so that one more death is conclusive."""
        return self._num_deaths(digest) == MOST_DEATHS - 1

    def _is_refused(self, digest: int) -> bool:
        case, num_deaths = self._case(digest), self._num_deaths(digest)
        is_found = num_deaths >= MOST_DEATHS or (num_deaths == MOST_DEATHS - 1 and case.was_alone)
        return is_found or len(case.deaths) >= MOST_KILLS

    def _num_deaths(self, digest: int) -> int:
        """Without those from outside."""
        return sum(not self._is_outside(death) for death in self._case(digest).deaths)

    def _case(self, digest: int) -> _Case:
        case = self.cases.get(digest, _INNOCENT)
        return case if self._now() - case.last_s < _HOLDS_FOR_S else _INNOCENT


def refusal(num_deaths: int) -> ApiError:
    """The error of a poison request, with a status that clients do not retry."""
    minutes = _HOLDS_FOR_S / 60
    message = (
        f"a worker died {num_deaths} times while it answered this request; it is refused for {minutes:.0f} "
        "minutes, so that it ends no other worker. Change the request, or read the workers' logs"
    )
    return ApiError(422, message, "request_ended_workers")


def _keep_newest(held: OrderedDict[Hashable, set[int]] | OrderedDict[int, _Case], most: int) -> None:
    while len(held) > most:
        held.popitem(last=False)
