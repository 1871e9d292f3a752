"""What becomes of a request that a worker did not answer: whether another one is asked, and how long it waits for that.

Replicas are asked in turn. A stream that has begun, and a request of the only worker, wait for one that is back.
"""

from __future__ import annotations

import asyncio
import time

from qserve.gateway.relay.replicas import Replicas, RoutedRequest
from qserve.gateway.relay.upstream import Life
from qserve.gateway.routing.poison import MOST_KILLS, refusal
from qserve.wire.errors import ApiError

__all__ = ["Attempts"]

# Errors after which another replica is asked.
_ELSEWHERE = frozenset({"worker_died", "worker_unreachable"})
# What a request that waits to be asked again may meet on its way: a full queue, a worker that is not ready yet.
_FOR_NOW = frozenset({429, 503})
_LOOK_S = 0.05


class Attempts:
    """Those of one request.

    Attributes:
        tried: workers that failed it and were not restarted since.
    """

    def __init__(self, replicas: Replicas, request: RoutedRequest, wait_s: float) -> None:
        """`wait_s`: for a worker that is back, from each failure on."""
        self._replicas = replicas
        self._request = request
        self._wait_s = wait_s
        self.tried: list[Life] = []
        self._num_deaths = 0
        self._waits_with: ApiError | None = None
        self._until_s = 0.0

    async def failed(self, error: ApiError, life: Life | None, *, has_begun: bool, may_wait: bool) -> ApiError | None:
        """What the request ends with; None: it is asked again.

        `life`: of the worker that failed it; None if none had a slot. `has_begun`: the client has a part of the answer.
        `may_wait`: all is there that asking again takes.
        """
        if life is None:
            if self._waits_with is None or error.status not in _FOR_NOW or time.monotonic() > self._until_s:
                return error
            await asyncio.sleep(_LOOK_S)
            return None
        has_died = error.code == "worker_died"
        self._num_deaths += has_died  # an unreachable worker never received it
        if has_died and await self._replicas.died(self._request, life):
            return error if has_begun else refusal(max(self._num_deaths, 2))
        if error.code not in _ELSEWHERE or (has_begun and not may_wait):
            return error
        self.tried.append(life)
        waits = has_begun or (self._replicas.is_single and may_wait)
        self._waits_with, self._until_s = error if waits else None, time.monotonic() + self._wait_s
        is_last = (self._replicas.is_single and not waits) or self._num_deaths >= MOST_KILLS
        return error if is_last else None

    async def until_ready(self) -> None:
        """Before the next one, where the request waits. Raises what it waits with where no worker comes in time."""
        if self._waits_with is None:
            return
        while not self._replicas.has_ready(self.tried):
            if time.monotonic() > self._until_s or not self._replicas.may_have_ready():
                raise self._waits_with
            await asyncio.sleep(_LOOK_S)
