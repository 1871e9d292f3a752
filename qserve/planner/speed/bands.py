"""How far figures were off on cards with releases that the fit had not seen: the band that a figure is given with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from qserve.core.facts import load

__all__ = ["EXACT", "INSIDE_PERCENT", "INSIDE_PERCENT_LEARNED", "Band", "Metric", "band_of"]

INSIDE_PERCENT = 90
"""Of measured figures, that bands are made to hold (scripts/accuracy_speed.py)."""
INSIDE_PERCENT_LEARNED = 80
"""The same where earlier runs corrected the plan: p10 to p90 of a CPU's rounds, [bands.learned_cpu]."""

Metric = Literal["tpot", "ttft_one", "ttft", "throughput", "saturated"]


@dataclass(frozen=True)
class Band:
    """Factors on the planned value: between them lay nine of ten measured ones of the kind."""

    low: float
    high: float

    def around(self, value: float) -> tuple[float, float]:
        """(low, high) of a planned value."""
        return value * self.low, value * self.high


EXACT = Band(1.0, 1.0)


def band_of(metric: Metric, rows: str, is_borrowed: bool, is_learned: bool = False) -> Band:
    """`rows` names a table of configs/speed.toml, [bands]; what it lacks is taken of all engines together.

    `is_borrowed`: the card's kernels were measured on another; `is_learned`: a run on this card corrected it.
    """
    table = load("speed")["bands"]
    if is_learned:
        low, high = table["learned_cpu" if rows == "cpu" else "learned"][metric]
        return Band(low, high)
    low, high = table.get(rows, {}).get(metric) or table["other"][metric]
    wider = table["borrowed"] if is_borrowed else 1.0
    return Band(low / wider, high * wider)
