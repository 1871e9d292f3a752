"""The safety margin: what is left free where other terms are uncertain, so that the high ends of their bands fit."""

from __future__ import annotations

from qserve.engines.vllm.plan.trial import Trial
from qserve.planner.term import TermKind
from qserve.units import GIB, format_bytes

__all__ = ["SAFETY_MARGIN", "WIDE_BYTES", "WIDE_SHARE", "SafetyMargin"]

SAFETY_MARGIN = "held back"

WIDE_SHARE = 0.2
WIDE_BYTES = 2 * GIB
"""A term whose band is wider than this share of the KV cache, or than what the share of the card leaves free for such
things, is started at its high end. A plan that promises too much ends in the middle of a request; one that promises too
little has that much less cache, until a run has been measured (then the band is gone)."""


class SafetyMargin(TermKind[Trial]):
    """The distance of uncertain terms from their high ends.

    Nothing where --gpu-memory-utilization or --kv-cache-memory-bytes says how much is to be taken, where earlier runs
    were measured, and (`Trial.keeps_margin`) where a model fits only if the terms come out as expected.
    """

    name, column = SAFETY_MARGIN, "runtime"

    def __init__(self, counted: tuple[TermKind[Trial], ...]) -> None:
        """`counted`: the kinds whose bands are looked at."""
        self._counted = counted

    def num_bytes(self, sizes: Trial, stage: int) -> int:
        return sum(self._uncertain(sizes, stage).values()) if sizes.keeps_margin else 0

    def formula(self, sizes: Trial, stage: int) -> str:
        more = [f"{name} up to {format_bytes(num_bytes)}" for name, num_bytes in self._uncertain(sizes, stage).items()]
        end = (
            f"each is uncertain by more than {WIDE_SHARE:.0%} of the cache, or by more than {format_bytes(WIDE_BYTES)}"
        )
        if not sizes.keeps_margin:
            return f"{', '.join(more)} more than expected: {end}; nothing is held back, since it would not fit then"
        return f"{', '.join(more)} more than expected: {end}; --gpu-memory-utilization takes it"

    def source(self, sizes: Trial) -> str:
        return "the bands of the other terms; docs/results/planner.md has the start-up logs behind them"

    def band(self, sizes: Trial, num_bytes: int) -> tuple[int, int]:
        return 0, num_bytes or sum(self._uncertain(sizes, 0).values())

    def is_shown(self, sizes: Trial, num_bytes: int) -> bool:
        return num_bytes > 0 or bool(self._uncertain(sizes, 0))

    def _uncertain(self, sizes: Trial, stage: int) -> dict[str, int]:
        """By the name of each wide term, its high end less what is expected."""
        request = sizes.candidate.request
        is_fixed = sizes.options.gpu_memory_utilization or request.kv_cache_memory_bytes is not None
        if is_fixed or request.learned:
            return {}
        charged = [(kind, kind.num_bytes(sizes, stage)) for kind in self._counted if kind.is_charged(sizes)]
        held = sizes.stage_weights[stage] + sum(size for _, size in charged)
        most = min(WIDE_BYTES, WIDE_SHARE * max(0, sizes.device.total_bytes * sizes.gpu_memory_utilization - held))
        found = {}
        for kind, num_bytes in charged:
            low, high = kind.band(sizes, num_bytes)
            if num_bytes < high and high - low > most:
                found[kind.name] = high - num_bytes
        return found
