"""What was measured of a machine: factors on the steps of a plan, by the terms that they hold for."""

from __future__ import annotations

import bisect
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from qserve.planner.speed.simulated import Steps
from qserve.planner.speed.terms.cpu import CpuRates
from qserve.planner.speed.terms.engine_costs import EngineCosts

__all__ = ["NOTHING_MEASURED", "CorrectedSteps", "Measured", "ResidualKey", "SpeedResidual", "StepFactors"]

Factors = tuple[tuple[int, float], ...]
"""(size, factor) in order of size: between two sizes the logarithm goes straight, beyond them the last one holds."""
NO_FACTORS: Factors = ((1, 1.0),)


@dataclass(frozen=True)
class StepFactors:
    """Measured over planned: of decode steps by their sequences, of steps with prompts by the prompts' tokens, and of
    the time before the first step (HTTP, tokenizer)."""

    decode: Factors = NO_FACTORS
    prefill: Factors = NO_FACTORS
    intake: float = 1.0

    def __str__(self) -> str:
        """For people: decode × 1.21 at 1, 0.97 at 16 sequences; …."""
        return (
            f"decode {_in_words(self.decode, 'sequences')}; prefill {_in_words(self.prefill, 'tokens')}; "
            f"intake × {self.intake:.2f}"
        )


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
    """What the `run` with `num_requests` teaches. `others`: of the processors, that other programs took meanwhile."""

    key: ResidualKey
    factors: StepFactors
    num_requests: int
    run: str
    others: float = 0.0


@dataclass(frozen=True)
class CorrectedSteps:
    """Steps of an engine with factors on them."""

    steps: Steps
    factors: StepFactors

    @property
    def costs(self) -> EngineCosts:
        costs, intake = self.steps.costs, self.factors.intake
        return replace(
            costs,
            intake_ms=costs.intake_ms * intake,
            intake_ms_per_1k=costs.intake_ms_per_1k * intake,
            queued_ms=costs.queued_ms * intake,
        )

    def decode_s(self, batch: int, context: float) -> float:
        """Seconds, corrected."""
        return _at(self.factors.decode, batch) * self.steps.decode_s(batch, context)

    def mixed_s(self, batch: int, context: float, chunks: list[tuple[int, int]]) -> float:
        """Seconds, corrected."""
        new = sum(count for count, _ in chunks)
        return _at(self.factors.prefill, new) * self.steps.mixed_s(batch, context, chunks)


@dataclass(frozen=True)
class Measured:
    """What is known of this machine: its CPU's rates and the residuals of earlier runs, one for each key."""

    cpu: CpuRates | None = None
    residuals: tuple[SpeedResidual, ...] = ()

    def residual_for(self, key: ResidualKey) -> SpeedResidual | None:
        """Of the last run that holds for such a server; None where there is none."""
        return next((one for one in self.residuals if one.key == key), None)


NOTHING_MEASURED = Measured()


def _at(factors: Factors, size: int) -> float:
    place = bisect.bisect_left(factors, (size, 0.0))
    if place == 0:
        return factors[0][1]
    if place == len(factors):
        return factors[-1][1]
    (below, low), (above, high) = factors[place - 1], factors[place]
    share = math.log(size / below) / math.log(above / below)
    return float(low * (high / low) ** share)


def _in_words(factors: Sequence[tuple[int, float]], what: str) -> str:
    if len(factors) == 1:
        return f"× {factors[0][1]:.2f}"
    return "× " + ", ".join(f"{factor:.2f} at {size}" for size, factor in factors) + f" {what}"
