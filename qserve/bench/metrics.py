"""Records to figures, as vLLM 0.32 computes them (benchmarks/serve.py: calculate_metrics), under the same names.

Failed requests count in no latency and no token total. Throughput is over the stage's whole duration, from the first
request to the end of the last. Percentiles are interpolated linearly, which is numpy's default.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from qserve.bench.load import Stage
from qserve.bench.records import RequestRecord
from qserve.bench.run import StageRun
from qserve.errors import UsageError

__all__ = ["GOODPUT_NAMES", "Distribution", "StageFigures", "figures_of", "parse_goodput", "percentile"]

GOODPUT_NAMES = ("ttft", "tpot", "e2el")
# A queue that grows must show beyond chance: the time of an answer varies with its length and with clumps of arrivals.
_SIGMAS = 3.0
_FEWEST_OF_QUARTER = 3


@dataclass(frozen=True)
class Distribution:
    """Of one latency over a stage, in milliseconds; zeros where nothing was measured."""

    num_values: int
    mean: float
    std: float
    p50: float
    p90: float
    p99: float
    most: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Distribution:
        values = sorted(1e3 * value for value in seconds)
        if not values:
            return cls(0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
        p50, p90, p99 = (percentile(values, share) for share in (0.5, 0.9, 0.99))
        return cls(len(values), statistics.fmean(values), statistics.pstdev(values), p50, p90, p99, values[-1])


@dataclass(frozen=True)
class StageFigures:
    """What a stage comes to.

    Attributes:
        completed, failed: requests.
        errors: failed requests by kind; `error_sentences` holds one of each kind.
        request_goodput: requests a second within every limit; None without limits.
        announced: first event with choices, vLLM's TTFT; differs from `ttft` where a server announces the role ahead.
        lag: sent later than the schedule wanted, which is the generator's own fault.
        backlog_growth: seconds by which answers came later with each second of an open loop; 0.0 where they did not,
            by more than chance.
        kept_up: share of what arrives that is answered as it arrives; None in a closed loop.
    """

    stage: Stage
    duration_s: float
    completed: int
    failed: int
    num_cut_off: int
    errors: Mapping[str, int]
    error_sentences: Mapping[str, str]
    total_input_tokens: int
    total_output_tokens: int
    total_texts: int
    request_throughput: float
    output_throughput: float
    total_token_throughput: float
    text_throughput: float
    request_goodput: float | None
    ttft: Distribution
    tpot: Distribution
    itl: Distribution
    e2el: Distribution
    announced: Distribution
    lag: Distribution
    backlog_growth: float
    kept_up: float | None
    cpu_share: float
    num_chunks: int

    @property
    def rate(self) -> float:
        """Work done a second: output tokens, or what was read where nothing is generated."""
        return self.output_throughput or self.total_token_throughput or self.request_throughput


def figures_of(run: StageRun, goodput: Mapping[str, float]) -> StageFigures:
    """Args: goodput: limits in milliseconds by name, all of which a good request keeps; {} for none."""
    good = [record for record in run.records if record.is_complete]
    failed = [record for record in run.records if record.failure is not None]
    duration_s = max(run.duration_s, 1e-9)
    num_input, num_output = sum(one.prompt_tokens for one in good), sum(one.output_tokens for one in good)
    num_texts = sum(one.num_texts for one in good)
    num_kept = sum(_is_good(one, goodput) for one in good)
    backlog_growth = _backlog_growth(run)
    return StageFigures(
        stage=run.stage,
        duration_s=run.duration_s,
        completed=len(good),
        failed=len(failed),
        num_cut_off=run.num_cut_off,
        errors=dict(Counter(one.failure.kind for one in failed if one.failure).most_common()),
        error_sentences={one.failure.kind: one.failure.sentence for one in reversed(failed) if one.failure},
        total_input_tokens=num_input,
        total_output_tokens=num_output,
        total_texts=num_texts,
        request_throughput=len(good) / duration_s,
        output_throughput=num_output / duration_s,
        total_token_throughput=(num_input + num_output) / duration_s,
        text_throughput=num_texts / duration_s,
        request_goodput=num_kept / duration_s if goodput else None,
        ttft=Distribution.of([one.ttft_s for one in good if one.ttft_s is not None]),
        tpot=Distribution.of([one.tpot_s for one in good if one.tpot_s is not None]),
        itl=Distribution.of([gap for one in good for gap in one.itl_s]),
        e2el=Distribution.of([one.e2e_s for one in good]),
        announced=Distribution.of([one.announced_s for one in good if one.chunk_s]),
        lag=Distribution.of([max(0.0, one.start_s - one.due_s) for one in run.records]),
        backlog_growth=backlog_growth,
        kept_up=_kept_up(run, backlog_growth),
        cpu_share=run.cpu_s / duration_s,
        num_chunks=sum(len(one.chunk_s) for one in run.records),
    )


def percentile(ordered: Sequence[float], share: float) -> float:
    """Of values in order, interpolated between the two nearest."""
    place = share * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def parse_goodput(words: Sequence[str]) -> dict[str, float]:
    """Limits in milliseconds from `ttft:200`, `tpot:50`, `e2el:3000`. Raises UsageError for other words."""
    limits: dict[str, float] = {}
    for word in (part for text in words for part in text.replace(",", " ").split()):
        name, _, value = word.partition(":")
        name = "e2el" if name == "e2e" else name
        try:
            limits[name] = float(value)
        except ValueError:
            limits[name] = 0.0
        if name not in GOODPUT_NAMES or not 0 < limits[name] < math.inf:
            raise UsageError(f"--goodput {word}: write a limit in milliseconds as ttft:200, tpot:50 or e2el:3000")
    return limits


def _is_good(record: RequestRecord, goodput: Mapping[str, float]) -> bool:
    """An answer of one token has no TPOT and keeps every limit of it, as in vLLM."""
    seen = {"ttft": record.ttft_s or 0.0, "tpot": record.tpot_s or 0.0, "e2el": record.e2e_s}
    return all(1e3 * seen[name] <= limit for name, limit in goodput.items())


def _kept_up(run: StageRun, backlog_growth: float) -> float | None:
    """What is answered of what arrives late in the stage: answers that come s later each second keep 1 / (1 + s)."""
    later_half = sorted(run.records, key=_due)[len(run.records) // 2 :]
    if run.stage.request_rate is None or not later_half:
        return None
    return sum(one.is_complete for one in later_half) / len(later_half) / (1.0 + backlog_growth)


def _backlog_growth(run: StageRun) -> float:
    """From the third quarter of the arrivals to the fourth. The drain after the last arrival has no part in it, and
    neither has the time that a server takes to fill up at the beginning.
    """
    if run.stage.request_rate is None:
        return 0.0
    done = [one for one in sorted(run.records, key=_due)[len(run.records) // 2 :] if one.is_complete]
    third, fourth = done[: len(done) // 2], done[len(done) // 2 :]
    if len(third) < _FEWEST_OF_QUARTER:
        return 0.0
    took = [[one.start_s + one.end_s - one.due_s for one in quarter] for quarter in (third, fourth)]
    between_s = statistics.fmean(map(_due, fourth)) - statistics.fmean(map(_due, third))
    later_s = statistics.fmean(took[1]) - statistics.fmean(took[0])
    # Requests that came together waited together: of these only one is a measurement of its own.
    chance_s = math.sqrt(run.stage.burst_size * sum(statistics.variance(one) / len(one) for one in took))
    return later_s / between_s if later_s > _SIGMAS * chance_s and between_s > 0 else 0.0


def _due(record: RequestRecord) -> float:
    return record.due_s
