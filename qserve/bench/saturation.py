"""Finds the load at which a server saturates, and whether its requests wait or its tokens come slower."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from qserve.bench.metrics import StageFigures

__all__ = ["Saturation", "is_saturated", "saturation_of"]

# A stage that does so much of the best stage's work is as good as it.
_AS_GOOD = 0.95
# Doublings of the load that bring less than this end a sweep.
_WORTH_DOUBLING = 1.05
_KEEPS_UP = 0.9
_MOSTLY = 0.6
_NO_LONGER = 0.05
_ALIKE = 1.2


@dataclass(frozen=True)
class Saturation:
    """What a series of stages says.

    Attributes:
        stage: name of the first stage that does nearly all that can be done; "" where not saturated.
        rate: work a second at the best stage.
        waiting_share: of what a request takes longer at the heaviest stage than at the lightest, the part before its
            first token: waiting for a place and for its prompt. The rest is slower tokens. None where it can't be told.
        sentence: all of it, for people.
    """

    stage: str
    rate: float
    waiting_share: float | None
    sentence: str


def is_saturated(figures: Sequence[StageFigures]) -> bool:
    """Whether a sweep can end: two doublings in a row brought next to nothing (one may be chance), or most fails."""
    if not figures:
        return False
    if figures[-1].failed > figures[-1].completed:
        return True
    rates = [one.rate for one in figures]
    return len(rates) > 2 and max(rates[-2:]) < _WORTH_DOUBLING * max(rates[:-2])


def saturation_of(figures: Sequence[StageFigures], unit: str) -> Saturation | None:
    """Args: unit: of `StageFigures.rate`. None for fewer than two stages that completed anything."""
    done = sorted((one for one in figures if one.completed), key=lambda one: one.stage.load)
    if len(done) < 2:
        return None
    if done[0].stage.request_rate is not None:
        return _open(done, unit)
    best = max(one.rate for one in done)
    knee = next(one for one in done if one.rate >= _AS_GOOD * best)
    share = _waiting_share(done[0], done[-1])
    if knee is done[-1]:
        gain = done[-1].rate / done[-2].rate if done[-2].rate else 1.0
        return Saturation(
            "",
            best,
            share,
            f"Not saturated at {done[-1].stage.name}: {best:,.0f} {unit}, {100 * (gain - 1):.0f} % more than at "
            f"{done[-2].stage.name}. {_why(done[0], done[-1], share)}",
        )
    return Saturation(
        knee.stage.name,
        best,
        share,
        f"Saturates at {knee.stage.name}: {knee.rate:,.0f} {unit}; {done[-1].stage.name} brings "
        f"{done[-1].rate:,.0f}. {_why(done[0], done[-1], share)}",
    )


def _open(done: Sequence[StageFigures], unit: str) -> Saturation:
    share = _waiting_share(done[0], done[-1])
    best = max(one.rate for one in done)
    behind = next((one for one in done if (one.kept_up or 0.0) < _KEEPS_UP), None)
    if behind is None:
        return Saturation("", best, share, f"Keeps up with {done[-1].stage.name} ({best:,.0f} {unit}): not saturated.")
    before = [one for one in done if one.stage.load < behind.stage.load]
    kept = f"Keeps up with {before[-1].stage.name}; at" if before else "Does not keep up with the lowest rate: at"
    grows = ", and the queue grows" if behind.backlog_growth else "; the rest fails"
    return Saturation(
        behind.stage.name,
        best,
        share,
        f"{kept} {behind.stage.name} it answers {100 * (behind.kept_up or 0.0):.0f} % of what arrives{grows} "
        f"({best:,.0f} {unit} at most). {_why(done[0], done[-1], share)}",
    )


def _waiting_share(first: StageFigures, last: StageFigures) -> float | None:
    longer = last.e2el.p50 - first.e2el.p50
    if longer <= 0 or not first.ttft.num_values or not last.ttft.num_values:
        return None
    return min(1.0, max(0.0, (last.ttft.p50 - first.ttft.p50) / longer))


def _why(first: StageFigures, last: StageFigures, share: float | None) -> str:
    """Queue or compute, from the medians."""
    longer_ms = last.e2el.p50 - first.e2el.p50
    if longer_ms < _NO_LONGER * first.e2el.p50:
        return "A request takes no longer than at the lightest load."
    longer = f"A request takes {longer_ms:,.0f} ms longer than at {first.stage.name}"
    if share is None:
        queued = last.rate < _ALIKE * first.rate
        return f"{longer}{', and no more gets done: it waits in a queue' if queued else ''}."
    waiting = f"TTFT {first.ttft.p50:,.0f} to {last.ttft.p50:,.0f} ms"
    slower = f"TPOT {first.tpot.p50:,.1f} to {last.tpot.p50:,.1f} ms"
    if share >= _MOSTLY:
        return f"{longer}, {100 * share:.0f} % of it before its first token ({waiting}): it waits in a queue."
    if share <= 1 - _MOSTLY:
        return f"{longer}, {100 * (1 - share):.0f} % of it between tokens ({slower}): each step computes more."
    return f"{longer}, before its first token ({waiting}) and between tokens ({slower}): queue and compute alike."
