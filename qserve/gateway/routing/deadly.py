"""Requests that were in flight when workers died: the second time the request itself is suspected."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Hashable

from qserve.wire.errors import ApiError

__all__ = ["DeadlyRequests"]

_DEATHS = 2
_HOLDS_FOR_S = 600.0
_MOST_HELD = 4096
_NONE: frozenset[Hashable] = frozenset()


class DeadlyRequests:
    """Counts deaths by the hash of a request's bytes. What was answered since is innocent, and so is what is old."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._seen: OrderedDict[int, tuple[frozenset[Hashable], float]] = OrderedDict()

    def died(self, digest: int, death: Hashable) -> bool:
        """It was in flight in this death; whether that is one too many. Many equal requests may have been."""
        deaths = self._deaths(digest) | {death}
        self._seen[digest] = (deaths, self._now())
        self._seen.move_to_end(digest)
        while len(self._seen) > _MOST_HELD:
            self._seen.popitem(last=False)
        return len(deaths) >= _DEATHS

    def answered(self, digest: int) -> None:
        """It came to its end, so that it is not what ends workers."""
        if self._seen:
            self._seen.pop(digest, None)

    def check(self, digest: int) -> None:
        """Raises ApiError 422 for a request that was in flight in two deaths."""
        if self._seen and len(self._deaths(digest)) >= _DEATHS:
            raise refusal()

    def _deaths(self, digest: int) -> frozenset[Hashable]:
        deaths, last_s = self._seen.get(digest, (_NONE, 0.0))
        return deaths if self._now() - last_s < _HOLDS_FOR_S else _NONE


def refusal() -> ApiError:
    """What its client is told; no status that clients try again by themselves."""
    minutes = _HOLDS_FOR_S / 60
    message = (
        f"a worker died {_DEATHS} times while it answered this very request; it is refused for {minutes:.0f} minutes, "
        "so that it does not end another. Change the request, or look into the workers' logs"
    )
    return ApiError(422, message, "request_ended_workers")
