"""One model of the schedule as it is now: its worker, its bytes, who waits for it, since when it serves."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from qserve.planner.residency.footprint import Footprint
from qserve.planner.residency.schedule import ModelView
from qserve.service.residents import Keeping
from qserve.supervisor.residency.worker import OnDemandWorker
from qserve.worker.base import TurnCounts, WorkerState

__all__ = ["Resident"]


@dataclass(eq=False)
class Resident:
    """Times are seconds of the event loop's clock.

    Attributes:
        is_wanted: somebody asked for it to be loaded, whether or not requests wait.
        waiting_since_s: the first request that waits for it came then; None: none waits.
        ready_s: it was ready then.
        idle_s: its last request ended then.
        failed_s: its start failed then; None: it did not, or that is long ago.
    """

    worker: OnDemandWorker
    footprint: Footprint
    keeping: Keeping
    is_wanted: bool = False
    waiting_since_s: float | None = None
    ready_s: float = 0.0
    idle_s: float = 0.0
    failed_s: float | None = None
    _seen_s: float | None = None
    _num_pieces: int = 0

    def __post_init__(self) -> None:
        self.turns = self.worker.status.turns = TurnCounts()

    @property
    def name(self) -> str:
        """Of its group, and of its worker."""
        return self.footprint.name

    @property
    def is_ready(self) -> bool:
        """Whether it takes requests."""
        return self.worker.status.state is WorkerState.READY

    @property
    def has_requests(self) -> bool:
        """Running or waiting."""
        load = self.worker.status.load
        return load.num_outstanding_requests + load.num_wanting > 0

    def see(self, now_s: float) -> None:
        """Look at it, many times a second."""
        has_requests, num_pieces = self.has_requests, self.worker.status.load.num_pieces
        has_answered, self._num_pieces = num_pieces != self._num_pieces, num_pieces  # also between two looks
        if self.worker.is_loaded and (has_requests or has_answered):
            self.turns.served_s += 0.0 if self._seen_s is None else now_s - self._seen_s
            self.idle_s = now_s
        if not self.is_ready and (has_requests or self.is_wanted):
            self.waiting_since_s = now_s if self.waiting_since_s is None else self.waiting_since_s
        else:
            self.waiting_since_s = None
        self._seen_s = now_s

    def became_ready(self, now_s: float, load_s: float) -> None:
        """It was loaded, which took so long."""
        self.turns.waited_s += 0.0 if self.waiting_since_s is None else now_s - self.waiting_since_s
        self.turns.num_loads += 1
        self.turns.load_s = load_s
        self.ready_s = self.idle_s = now_s
        self.is_wanted, self.failed_s, self.waiting_since_s = False, None, None
        self.footprint = replace(self.footprint, load_s=load_s)

    def failed(self, now_s: float) -> None:
        """Its start failed."""
        self.is_wanted, self.failed_s = False, now_s

    def view(self) -> ModelView:
        """For the schedule."""
        return ModelView(
            self.footprint,
            self.worker.is_loaded,
            self.has_requests,
            self.waiting_since_s,
            self.ready_s,
            self.idle_s,
            self.keeping.is_pinned,
            self.keeping.priority,
            self.keeping.ttl_s,
            self.failed_s is None,
        )

    def document(self, now_s: float) -> dict[str, Any]:
        """For GET /v1/qserve/models; durations in seconds, None where there is none."""
        status = self.worker.status
        waiting_s = None if self.waiting_since_s is None else now_s - self.waiting_since_s
        return {
            "name": self.name,
            "models": list(status.facts.models),
            "role": status.role,
            "engine": status.facts.engine,
            "state": status.state.value,
            "detail": status.detail,
            "is_pinned": self.keeping.is_pinned,
            "ttl_s": self.keeping.ttl_s,
            "priority": self.keeping.priority,
            "planned_bytes": self.footprint.num_bytes,
            "num_requests": status.load.num_outstanding_requests + status.load.num_wanting,
            "idle_s": round(now_s - self.idle_s, 1) if self.worker.is_loaded and not self.has_requests else None,
            "waiting_s": None if waiting_s is None else round(waiting_s, 1),
            "load_s": self.footprint.load_s,
            "num_loads": self.turns.num_loads,
            "served_s": round(self.turns.served_s, 1),
        }
