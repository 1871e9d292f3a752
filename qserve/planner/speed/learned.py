"""What a run's requests took beside what is simulated for them: factors on the next plan's steps. Pure arithmetic."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from qserve.planner.speed.figures import percentile
from qserve.planner.speed.served import ServedRequest, replayed
from qserve.planner.speed.simulate import Finished, Limits, Steps
from qserve.planner.speed.terms.cpu import CpuRates
from qserve.planner.speed.terms.engine_costs import EngineCosts

__all__ = [
    "NOTHING_MEASURED",
    "CorrectedSteps",
    "Measured",
    "ResidualKey",
    "SpeedResidual",
    "StepFactors",
    "residual_of",
]

_LEAST_REQUESTS = 3
_ROUNDS = 4
_MOST_FACTOR = 6.0
"""A machine further off than this did something else meanwhile: nothing is learned from it."""
_NUDGE = 0.1
_MOST_MOVE = 0.7
# How firmly, in the logarithm, a factor stays where nothing is known: at 1, and `growth` at `decode`. One load says
# nothing of what further streams add, and one length of prompts does not tell what a prompt's steps take from what lies
# before them.
_PULL = {"decode": 0.01, "growth": 0.05, "prefill": 0.08, "intake": 0.15}


@dataclass(frozen=True)
class StepFactors:
    """Measured over planned: of a decode step of one sequence, of what further sequences add to it (`growth`), of
    steps with prompts, and of the time before the first step (HTTP, tokenizer)."""

    decode: float = 1.0
    growth: float = 1.0
    prefill: float = 1.0
    intake: float = 1.0


@dataclass(frozen=True)
class ResidualKey:
    """What a measurement of speed holds for: `device` by its name, `checkpoint` as it was loaded."""

    engine: str
    engine_version: str
    device: str
    checkpoint: str
    quant: str
    ranks: int


@dataclass(frozen=True)
class SpeedResidual:
    """What the `run` with `num_requests` teaches."""

    key: ResidualKey
    factors: StepFactors
    num_requests: int
    run: str


@dataclass(frozen=True)
class CorrectedSteps:
    """Steps of an engine with factors on them."""

    steps: Steps
    factors: StepFactors

    @property
    def costs(self) -> EngineCosts:
        costs, intake = self.steps.costs, self.factors.intake
        return replace(costs, intake_ms=costs.intake_ms * intake, intake_ms_per_1k=costs.intake_ms_per_1k * intake)

    def decode_s(self, batch: int, context: float) -> float:
        """Seconds, corrected."""
        one, whole = self.steps.decode_s(1, context), self.steps.decode_s(batch, context)
        return self.factors.decode * one + self.factors.growth * (whole - one)

    def mixed_s(self, batch: int, context: float, chunks: list[tuple[int, int]]) -> float:
        """Seconds, corrected."""
        return self.factors.prefill * self.steps.mixed_s(batch, context, chunks)


@dataclass(frozen=True)
class Measured:
    """What is known of this machine: its CPU's rates and the residuals of earlier runs, one for each key."""

    cpu: CpuRates | None = None
    residuals: tuple[SpeedResidual, ...] = ()

    def residual_for(self, key: ResidualKey) -> SpeedResidual | None:
        """Of the last run that holds for such a server; None where there is none."""
        return next((one for one in self.residuals if one.key == key), None)


NOTHING_MEASURED = Measured()


def residual_of(steps: Steps, limits: Limits, served: Iterable[ServedRequest]) -> StepFactors | None:
    """Factors with which the simulation of the same requests takes what they took.

    Requests are grouped by how many were answered at a time; of each group the medians of measured over simulated TPOT
    and TTFT are brought to 1 (Gauss-Newton in the logarithm, `_PULL` as a prior). None for too few requests and for
    decode steps that are off beyond belief; the other factors are bounded.
    """
    served = [one for one in served if one.output_tokens > 1 and one.ttft_s > 0]
    if len(served) < _LEAST_REQUESTS:
        return None
    levels = {id(one): level for one, level in zip(served, _levels(served), strict=True)}

    def missed(logs: Sequence[float]) -> list[float]:
        factors = StepFactors(*map(math.exp, logs))
        return _missed(replayed(CorrectedSteps(steps, factors), limits, served), levels) + _held_back(logs)

    found = [0.0] * len(_PULL)
    for _ in range(_ROUNDS):
        now = missed(found)
        if len(now) == len(_PULL):  # nothing was answered
            return None
        slopes = [_slope(missed, found, place, now) for place in range(len(found))]
        found = [
            one + min(max(step, -_MOST_MOVE), _MOST_MOVE) for one, step in zip(found, _step(slopes, now), strict=True)
        ]
    most = math.log(_MOST_FACTOR)
    if abs(found[0]) >= most:
        return None
    return StepFactors(*(math.exp(min(max(one, -most), most)) for one in found))


def _levels(served: Sequence[ServedRequest]) -> list[int]:
    """Of each request the power of two nearest to how many were answered in the middle of it."""
    middles = [one.at_s + one.ttft_s + (one.e2e_s - one.ttft_s) / 2 for one in served]
    counts = [sum(other.at_s <= middle < other.ends_s for other in served) for middle in middles]
    return [round(math.log2(max(1, count))) for count in counts]


def _missed(pairs: Iterable[tuple[ServedRequest, Finished]], levels: dict[int, int]) -> list[float]:
    """Of each level the logarithm of measured over simulated: TPOT, TTFT."""
    ratios: dict[int, list[tuple[float, float]]] = {}
    for one, planned in pairs:
        if planned.output_tokens > 1 and planned.ttft_s > 0:
            ratios.setdefault(levels[id(one)], []).append((one.tpot_s / planned.tpot_s, one.ttft_s / planned.ttft_s))
    found = []
    for level in sorted(ratios):
        for values in zip(*ratios[level], strict=True):
            weight = min(1.0, len(values) / _LEAST_REQUESTS) ** 0.5
            found.append(weight * math.log(max(percentile(sorted(values), 0.5), 1e-9)))
    return found


def _held_back(logs: Sequence[float]) -> list[float]:
    values = dict(zip(_PULL, logs, strict=True))
    towards = {"growth": values["decode"]}
    return [-weight * (values[name] - towards.get(name, 0.0)) for name, weight in _PULL.items()]


def _slope(missed: Any, at: list[float], place: int, now: list[float]) -> list[float]:
    nudged = [one + _NUDGE * (index == place) for index, one in enumerate(at)]
    there = missed(nudged)
    return [(b - a) / _NUDGE for a, b in zip(now, there, strict=True)] if len(there) == len(now) else [0.0] * len(now)


def _step(slopes: list[list[float]], now: list[float]) -> list[float]:
    """The least-squares step: (J J^T) x = -J r, by elimination."""
    size = len(slopes)
    rows = [
        [sum(a * b for a, b in zip(one, other, strict=True)) + 1e-9 * (i == j) for j, other in enumerate(slopes)]
        + [-sum(a * b for a, b in zip(one, now, strict=True))]
        for i, one in enumerate(slopes)
    ]
    for pivot in range(size):
        best = max(range(pivot, size), key=lambda row: abs(rows[row][pivot]))
        rows[pivot], rows[best] = rows[best], rows[pivot]
        for row in range(size):
            if row != pivot:
                share = rows[row][pivot] / rows[pivot][pivot]
                rows[row] = [a - share * b for a, b in zip(rows[row], rows[pivot], strict=True)]
    return [rows[index][size] / rows[index][index] for index in range(size)]
