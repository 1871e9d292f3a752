"""What a run's requests took beside what is simulated for them: factors on the next plan's steps. Pure arithmetic."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from qserve.planner.speed.figures import percentile
from qserve.planner.speed.load import Arrival, Load
from qserve.planner.speed.simulate import Finished, Limits, Steps, simulate
from qserve.planner.speed.terms.cpu import CpuRates
from qserve.planner.speed.terms.engine_costs import EngineCosts

__all__ = [
    "NOTHING_MEASURED",
    "CorrectedSteps",
    "Measured",
    "ResidualKey",
    "ServedRequest",
    "SpeedResidual",
    "residual_of",
    "served_of",
]

_LEAST_REQUESTS = 3
_ROUNDS = 16
_MOST_FACTOR = 6.0
"""A machine further off than this did something else meanwhile: nothing is learned from it."""


@dataclass(frozen=True)
class ServedRequest:
    """One answered request of a run: when it came, its lengths, and what it took."""

    at_s: float
    input_tokens: int
    output_tokens: int
    ttft_s: float
    e2e_s: float

    @property
    def tpot_s(self) -> float:
        return (self.e2e_s - self.ttft_s) / (self.output_tokens - 1) if self.output_tokens > 1 else 0.0


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
    """Measured over simulated, of decode steps and of steps with prompts, in the `run` with `num_requests`."""

    key: ResidualKey
    decode: float
    prefill: float
    num_requests: int
    run: str


@dataclass(frozen=True)
class CorrectedSteps:
    """Steps of an engine with factors on them: `decode` on those without a prompt, `prefill` on the others."""

    steps: Steps
    decode: float = 1.0
    prefill: float = 1.0

    @property
    def costs(self) -> EngineCosts:
        return self.steps.costs

    def decode_s(self, batch: int, context: float) -> float:
        """Seconds, corrected."""
        return self.decode * self.steps.decode_s(batch, context)

    def mixed_s(self, batch: int, context: float, chunks: list[tuple[int, int]]) -> float:
        """Seconds, corrected."""
        return self.prefill * self.steps.mixed_s(batch, context, chunks)


@dataclass(frozen=True)
class Measured:
    """What is known of this machine: its CPU's rates and the residuals of earlier runs, oldest first."""

    cpu: CpuRates | None = None
    residuals: tuple[SpeedResidual, ...] = ()

    def residual_for(self, key: ResidualKey) -> SpeedResidual | None:
        """The last run that holds for such a server; None where there is none."""
        return next((one for one in reversed(self.residuals) if one.key == key), None)


NOTHING_MEASURED = Measured()


def residual_of(steps: Steps, limits: Limits, served: Sequence[ServedRequest]) -> tuple[float, float] | None:
    """(decode, prefill) factors with which the simulation of the same requests takes what they took.

    None for too few requests and for factors beyond belief.
    """
    served = [one for one in served if one.output_tokens > 1 and one.ttft_s > 0]
    if len(served) < _LEAST_REQUESTS:
        return None
    start = min(one.at_s for one in served)
    arrivals = tuple(
        sorted((Arrival(one.at_s - start, one.input_tokens, one.output_tokens) for one in served), key=lambda a: a.at_s)
    )
    load = Load(trace=arrivals)
    tpot, ttft = _median(one.tpot_s for one in served), _median(one.ttft_s for one in served)
    decode = prefill = 1.0
    best, least = (1.0, 1.0), math.inf
    for _ in range(_ROUNDS):
        finished = simulate(CorrectedSteps(steps, decode, prefill), load, limits).finished
        if not finished:
            return None
        ratios = (tpot / _median(one.tpot_s for one in finished), ttft / _median(one.ttft_s for one in finished))
        missed = sum(abs(math.log(ratio)) for ratio in ratios)
        if missed < least:
            best, least = (decode, prefill), missed
        # Prompts hold decodes up, and decodes queue prompts: half a step at a time finds both.
        decode, prefill = decode * ratios[0] ** 0.5, prefill * ratios[1] ** 0.5
    decode, prefill = best
    if not all(1 / _MOST_FACTOR < factor < _MOST_FACTOR for factor in (decode, prefill)):
        return None
    return decode, prefill


def _median(values: Iterable[float]) -> float:
    return percentile(sorted(values), 0.5)


def served_of(finished: Iterable[Finished]) -> list[ServedRequest]:
    """Simulated answers as if a server had given them: for tests and for what-if."""
    return [
        ServedRequest(one.arrival_s, one.input_tokens, one.output_tokens, one.ttft_s, one.e2e_s) for one in finished
    ]
