"""What a run's requests took beside what is simulated for them: factors on the next plan's steps. Pure arithmetic."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from qserve.planner.speed.cpu import CpuRates
from qserve.planner.speed.figures import percentile
from qserve.planner.speed.load import Arrival, Load
from qserve.planner.speed.simulate import Finished, Limits, Steps, simulate

__all__ = ["Measured", "ServedRequest", "SpeedResidual", "residual_of"]

_LEAST_REQUESTS = 3
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
class SpeedResidual:
    """Measured over simulated, of decode steps and of steps with prompts, in one run of the same model and layout."""

    engine: str
    engine_version: str
    device: str
    quant: str
    ranks: int
    decode: float
    prefill: float
    num_requests: int
    run: str


@dataclass(frozen=True)
class Measured:
    """What is known of this machine: its CPU's rates and the residuals of earlier runs, oldest first."""

    cpu: CpuRates | None = None
    residuals: tuple[SpeedResidual, ...] = ()

    def residual_for(self, engine: str, version: str, device: str, quant: str, ranks: int) -> SpeedResidual | None:
        """The last run that holds for such a server; None where there is none."""
        wanted = (engine, version, device, quant, ranks)
        return next(
            (one for one in reversed(self.residuals)
             if (one.engine, one.engine_version, one.device, one.quant, one.ranks) == wanted),
            None,
        )  # fmt: skip


def residual_of(
    steps: Steps, limits: Limits, served: Sequence[ServedRequest], correct: Corrector
) -> tuple[float, float] | None:
    """(decode, prefill) factors with which the simulation of the same requests takes what they took.

    `correct` makes steps with factors. None for too few requests and for factors beyond belief.
    """
    served = [one for one in served if one.output_tokens > 1 and one.ttft_s > 0]
    if len(served) < _LEAST_REQUESTS:
        return None
    start = min(one.at_s for one in served)
    arrivals = tuple(
        sorted((Arrival(one.at_s - start, one.input_tokens, one.output_tokens) for one in served), key=lambda a: a.at_s)
    )
    load, decode, prefill = Load(trace=arrivals), 1.0, 1.0
    tpot, ttft = _median(one.tpot_s for one in served), _median(one.ttft_s for one in served)
    for _ in range(6):
        finished = simulate(correct(steps, decode, prefill), load, limits).finished
        if not finished:
            return None
        decode *= tpot / (_median(one.tpot_s for one in finished) or tpot)
        prefill *= ttft / (_median(one.ttft_s for one in finished) or ttft)
    if not all(1 / _MOST_FACTOR < factor < _MOST_FACTOR for factor in (decode, prefill)):
        return None
    return decode, prefill


class Corrector:
    """Steps with factors on them."""

    def __call__(self, steps: Steps, decode: float, prefill: float) -> Steps:
        return replace(steps, correction=decode, prefill_correction=prefill)  # type: ignore[type-var]


def _median(values: Iterable[float]) -> float:
    return percentile(sorted(values), 0.5)


def served_of(finished: Iterable[Finished]) -> list[ServedRequest]:
    """Simulated answers as if a server had given them: for tests and for what-if."""
    return [
        ServedRequest(one.arrival_s, one.input_tokens, one.output_tokens, one.ttft_s, one.e2e_s) for one in finished
    ]
