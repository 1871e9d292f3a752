"""Axis ticks at round numbers."""

from __future__ import annotations

import math

__all__ = ["byte_ticks", "clock_step", "nice_step", "ticks"]

_ROUND = (1.0, 2.0, 2.5, 5.0, 10.0)
_CLOCK_S = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 604800)


def nice_step(span: float, most: int) -> float:
    """The smallest of 1, 2, 2.5, 5 × a power of ten that covers `span` in at most `most` steps."""
    if span <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(span / most))
    return next((one * power for one in _ROUND if one * power * most >= span * (1 - 1e-9)), 10 * power)


def ticks(high: float, most: int = 4, smallest: float = 0.0) -> tuple[float, ...]:
    """From 0 to the first round number that is not below `high`, in steps of at least `smallest` (1 for counts)."""
    step = max(nice_step(high or 1.0, most), smallest)
    return tuple(step * index for index in range(math.ceil((high or 1.0) / step - 1e-9) + 1))


def byte_ticks(high: float, most: int = 4) -> tuple[float, ...]:
    """The same in the units that bytes are counted in."""
    unit = 1024.0 ** max(0, math.floor(math.log(max(high, 1.0), 1024) + 1e-9))
    return tuple(unit * mark for mark in ticks(high / unit, most))


def clock_step(span_s: float, most: int) -> int:
    """A distance between labels of a time axis that clocks have: seconds, minutes, hours, days."""
    return next((step for step in _CLOCK_S if step * most >= span_s), _CLOCK_S[-1])
