"""Free memory of the machine, as the supervisor's watch saw it last, for /metrics."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

__all__ = ["MachineMemory", "MachineMemoryGauges"]


@dataclass(slots=True)
class MachineMemory:
    """Written by the supervisor, read at scrape time.

    Attributes:
        total_bytes: of the machine or the cgroup, whichever is nearer to its threshold; 0 before the first look.
        available_bytes: what of it could be taken.
        refuse_bytes: below it no new requests are taken.
        stalled_share: of the time, in which processes waited for memory.
        level: 0 nothing is done, 1 new requests are refused, 2 a worker that outgrew its plan is drained and
            restarted, 3 a worker is ended.
        num_ended: workers that were ended for it, ever.
    """

    total_bytes: int = 0
    available_bytes: int = 0
    refuse_bytes: int = 0
    stalled_share: float = 0.0
    level: int = 0
    num_ended: int = 0


class MachineMemoryGauges(Collector):
    """A Prometheus collector of it."""

    def __init__(self, memory: MachineMemory) -> None:
        self._memory = memory

    def collect(self) -> Iterable[Metric]:
        """The metric families; empty before the first look."""
        memory = self._memory
        if not memory.total_bytes:
            return
        for name, text, value in (
            ("total_bytes", "Memory of the machine or the cgroup, whichever is scarcer", memory.total_bytes),
            ("available_bytes", "What of it could be taken", memory.available_bytes),
            ("refuse_bytes", "Below it no new requests are taken", memory.refuse_bytes),
            ("stalled_ratio", "Share of the time in which processes waited for memory", memory.stalled_share),
            ("level", "0 fine, 1 new requests are refused, 2 draining, 3 a worker is ended", memory.level),
        ):
            yield GaugeMetricFamily(f"qserve_gateway_machine_memory_{name}", text, value=value)
        yield CounterMetricFamily(
            "qserve_gateway_machine_memory_ended", "Workers ended to free memory", value=memory.num_ended
        )
