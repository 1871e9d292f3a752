"""Weights that lie in RAM or on disk beside a card: every step brings all of them there."""

from __future__ import annotations

from dataclasses import dataclass

from qserve.core.facts import load
from qserve.core.offload import are_streamed
from qserve.core.schemes import SCHEMES
from qserve.planner.plan import Plan
from qserve.planner.speed.terms.card import CardSpeed
from qserve.units import format_seconds

__all__ = ["NOTHING_OFFLOADED", "OffloadedWeights"]


@dataclass(frozen=True)
class OffloadedWeights:
    """Bytes of each place, and bytes/s to the card. `is_streamed`: the next layer comes while one computes."""

    ram_bytes: int = 0
    disk_bytes: int = 0
    bus_bytes_per_s: float = 1.0
    disk_bytes_per_s: float = 1.0
    is_streamed: bool = False

    @classmethod
    def of(cls, plan: Plan, card: CardSpeed) -> OffloadedWeights:
        """Of a plan with layers beside a card; `NOTHING_OFFLOADED` of any other."""
        held, placed = plan.placement.offloaded_bytes, plan.placement.device_map
        if not held or plan.on_cpu or not isinstance(placed, dict):
            return NOTHING_OFFLOADED
        rates = load("speed")["host"]
        streamed = are_streamed(plan.model.architecture, SCHEMES[plan.quant.scheme].bits, placed.values())
        bus = 1e9 * rates["gb_per_s"].get(card.interconnect, rates["gb_per_s"]["pcie4"])
        share = 1.0 if streamed else rates["pageable_share"]
        return cls(held.get("cpu", 0), held.get("disk", 0), bus * share, 1e9 * rates["disk_gb_per_s"], streamed)

    @property
    def copying_s(self) -> float:
        """Seconds of a step's copies."""
        return self.ram_bytes / self.bus_bytes_per_s + self.disk_bytes / self.disk_bytes_per_s

    def beside(self, computing_s: float) -> float:
        """Seconds of a step that computes for so long: the longer of both where they overlap, else their sum."""
        return max(computing_s, self.copying_s) if self.is_streamed else computing_s + self.copying_s

    def __str__(self) -> str:
        """For people."""
        ahead = "one layer ahead of computing, so a step takes the longer of both"
        how = ahead if self.is_streamed else "module by module, while the card waits"
        places = [(self.ram_bytes, self.bus_bytes_per_s, "RAM"), (self.disk_bytes, self.disk_bytes_per_s, "disk")]
        parts = [f"{num / 1e9:.1f} GB from {name} at {rate / 1e9:.3g} GB/s" for num, rate, name in places if num]
        return f"a step brings {' and '.join(parts)}: {format_seconds(self.copying_s)}, {how}"


NOTHING_OFFLOADED = OffloadedWeights()
