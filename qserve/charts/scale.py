"""Axis ticks at round numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence

__all__ = ["byte_ticks", "clock_step", "count_ticks", "nice_step", "scale_of", "ticks"]

_ROUND = (1.0, 2.0, 2.5, 5.0, 10.0)
_NUM_INTERVALS = 3
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


def count_ticks(count: float) -> tuple[float, float, float]:
    """0, half and all of the next of 2, 4, 6, 10, 20, 40, … : the half is a whole number."""
    power = 10 ** math.floor(math.log10(max(count, 1)))
    top = float(next(step * power for step in (1, 2, 4, 6, 10, 20) if step * power >= count and step * power >= 2))
    return 0.0, top / 2, top


def scale_of(values: Sequence[float], most: float = math.inf) -> list[float]:
    """Marks at round distances, between whose ends all values lie; four, or fewer where they would exceed `most`."""
    low, high = min(values), max(values)
    span = (high - low) or abs(high) or 1.0
    power: float = 10.0 ** math.floor(math.log10(span / _NUM_INTERVALS))
    for step in (power * factor for factor in (1, 1.5, 2, 2.5, 3, 4, 5, 7.5, 10, 15, 20)):
        first = math.floor(low / step + 1e-9) * step
        if first + _NUM_INTERVALS * step >= high - 1e-9 * step:
            break
    marks = [first + index * step for index in range(_NUM_INTERVALS + 1)]
    return marks if marks[-1] <= most + 1e-9 else _marks_below(most, low)


def _marks_below(most: float, low: float) -> list[float]:
    """Down from `most`, in the smallest round steps of which four reach `low`."""
    span = (most - low) or 1.0
    power: float = 10.0 ** math.floor(math.log10(span / 4))
    step = next(one for one in (power, 2 * power, 2.5 * power, 5 * power, 10 * power) if 4 * one >= span - 1e-9)
    num = math.ceil(span / step - 1e-9)
    return [most - step * index for index in range(num, -1, -1)]
