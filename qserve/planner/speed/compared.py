"""Latency of a run: what its plan says of the requests as they came, beside what they took."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from qserve.planner.speed.bands import Band, Metric
from qserve.planner.speed.estimate import Replica
from qserve.planner.speed.figures import percentile
from qserve.planner.speed.served import ServedRequest, replayed

__all__ = ["LatencyComparison", "compared"]

SOURCE = "the last streamed answers by the gateway's clock; planned: the same requests, simulated as they arrived"


@dataclass(frozen=True)
class ComparedFigure:
    """Milliseconds. `low` and `high` are the band of the planned mean, `difference` measured over planned mean, - 1."""

    planned_mean: float
    planned_p50: float
    low: float
    high: float
    measured_mean: float
    measured_p50: float

    @property
    def difference(self) -> float:
        return self.measured_mean / self.planned_mean - 1


@dataclass(frozen=True)
class LatencyComparison:
    """TTFT and TPOT of the same `num_requests`; `learned_from` names the run that corrected the plan.

    `tpot_ms` is None where each answer was sent at once.
    """

    ttft_ms: ComparedFigure
    tpot_ms: ComparedFigure | None
    num_requests: int
    learned_from: str | None = None

    def to_json(self) -> dict[str, Any]:
        """The object under "latency" of GET /v1/qserve/report."""
        figures = {
            name: {**_rounded(asdict(one)), "difference": round(one.difference, 4)}
            for name, one in (("ttft_ms", self.ttft_ms), ("tpot_ms", self.tpot_ms))
            if one is not None
        }
        return {**figures, "num_requests": self.num_requests, "learned_from": self.learned_from, "source": SOURCE}


def compared(replica: Replica, served: Iterable[ServedRequest]) -> LatencyComparison | None:
    """None where no answer of more than one token was streamed."""
    pairs = [
        (one, planned)
        for one, planned in replayed(replica.steps, replica.limits, served)
        if one.output_tokens > 1 and one.ttft_s > 0 and planned.ttft_s > 0
    ]
    if not pairs:
        return None
    # An answer that was sent at once says nothing of the time between its tokens.
    timed = [(one, planned) for one, planned in pairs if one.e2e_s > one.ttft_s]
    first: Metric = "ttft" if _overlap([one for one, _ in pairs]) else "ttft_one"
    return LatencyComparison(
        _figure([(one.ttft_s, planned.ttft_s) for one, planned in pairs], replica.band(first)),
        _figure([(one.tpot_s, planned.tpot_s) for one, planned in timed], replica.band("tpot")) if timed else None,
        len(pairs),
        replica.learned.run if replica.learned else None,
    )


def _overlap(served: Sequence[ServedRequest]) -> bool:
    ordered = sorted(served, key=lambda one: one.at_s)
    return any(after.at_s < before.ends_s for before, after in itertools.pairwise(ordered))


def _figure(pairs: Sequence[tuple[float, float]], band: Band) -> ComparedFigure:
    measured, planned = (sorted(1000 * value for value in values) for values in zip(*pairs, strict=True))
    mean = sum(planned) / len(planned)
    low, high = band.around(mean)
    return ComparedFigure(
        mean, percentile(planned, 0.5), low, high, sum(measured) / len(measured), percentile(measured, 0.5)
    )


def _rounded(values: dict[str, float]) -> dict[str, float]:
    return {name: round(value, 3) for name, value in values.items()}
