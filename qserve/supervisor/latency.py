"""Planned and measured latency of the requests that arrived."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field, replace
from typing import Any

from qserve.errors import QserveError
from qserve.gateway.run_history import RunHistory
from qserve.planner.speed.compared import compared
from qserve.planner.speed.estimate import Replica
from qserve.runs.served import served_requests
from qserve.supervisor.liveness.other_work import OtherWork
from qserve.worker.base import WorkerStatus

__all__ = ["LatencyWatch"]

_MOST_REQUESTS = 200
_HOLDS_FOR_S = 2.0


@dataclass
class LatencyWatch:
    """Compares on demand, in a thread; an answer holds for some seconds, so that nobody can keep it busy."""

    replica: Replica
    kept: RunHistory
    status: WorkerStatus
    others: OtherWork = field(default_factory=OtherWork)
    _comparison: dict[str, Any] = field(default_factory=dict)
    _compared_at_s: float = float("-inf")
    _alone: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def __call__(self) -> dict[str, Any]:
        """`LatencyComparison.to_json()`, and in `others_share` what other programs took of the processors since the
        first of these requests; empty where no such request was kept, or the store can't be read."""
        async with self._alone:
            if time.monotonic() - self._compared_at_s > _HOLDS_FOR_S:
                self._comparison = await asyncio.to_thread(self._now)
                self._compared_at_s = time.monotonic()
        return self._comparison

    def _now(self) -> dict[str, Any]:
        self.others.note()
        store, name = self.kept.store, self.kept.run_id
        if store is None or name is None:
            return {}
        try:
            served = served_requests(store, store.run(name), self.status.name, _MOST_REQUESTS)
        except QserveError:
            return {}
        # A start that was refused is tried once more with less.
        limits = replace(self.replica.limits, max_num_seqs=self.status.facts.max_num_seqs)
        found = compared(replace(self.replica, limits=limits), served)
        if found is None:
            return {}
        share = self.others.share_since(min(one.at_s for one in served))
        return {**found.to_json(), "others_share": round(share, 3)}
