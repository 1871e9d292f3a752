"""Several measurements of one CPU as one: what a probe of milliseconds meets moves more than the machine does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import median

from qserve.planner.speed.terms.cpu import CpuRates, Products

__all__ = ["middle_of"]


def middle_of(rates: Sequence[CpuRates]) -> CpuRates:
    """Figure by figure the median of measurements in order of time; of those that timed what the last one did.

    Raises IndexError where there is none.
    """
    last = rates[-1]
    alike = [one for one in rates if _timed(one) == _timed(last)]
    fewer = [one.fewer for one in alike if one.fewer is not None]
    return replace(
        last,
        read_bytes_per_s=median(one.read_bytes_per_s for one in alike),
        gemm_flop_per_s=median(one.gemm_flop_per_s for one in alike),
        linear_ps=_middle([one.linear_ps for one in alike]),
        large_ps=_middle([one.large_ps for one in alike]),
        unfused_ps=_middle([one.unfused_ps for one in alike]),
        coded_ps=tuple((name, _middle([dict(one.coded_ps)[name] for one in alike])) for name, _ in last.coded_ps),
        fewer=middle_of(fewer) if fewer else None,
    )


def _timed(rates: CpuRates) -> tuple[object, ...]:
    """What was timed: the cores, and the rows of each kind of product."""
    products = (rates.linear_ps, rates.large_ps, rates.unfused_ps, *(one for _, one in rates.coded_ps))
    rows = tuple(tuple(rows for rows, _ in one) for one in products)
    fewer = _timed(rates.fewer) if rates.fewer else ()
    return rates.cores, rates.is_compiled, tuple(name for name, _ in rates.coded_ps), rows, fewer


def _middle(some: Sequence[Products]) -> Products:
    return tuple((rows, median(one[place][1] for one in some)) for place, (rows, _) in enumerate(some[-1]))
