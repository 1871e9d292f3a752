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
        kept_up: share of the offered rate that was answered in the second half of the arrivals; None in a closed loop.
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
        kept_up=_kept_up(run),
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
        if name not in GOODPUT_NAMES or not limits[name] > 0:
            raise UsageError(f"--goodput {word}: write a limit in milliseconds as ttft:200, tpot:50 or e2el:3000")
    return limits


def _is_good(record: RequestRecord, goodput: Mapping[str, float]) -> bool:
    """An answer of one token has no TPOT and keeps every limit of it, as in vLLM."""
    seen = {"ttft": record.ttft_s or 0.0, "tpot": record.tpot_s or 0.0, "e2el": record.e2e_s}
    return all(1e3 * seen[name] <= limit for name, limit in goodput.items())


def _kept_up(run: StageRun) -> float | None:
    """Answers against arrivals while requests still came: the drain at the end would hide a queue that grows."""
    if run.stage.request_rate is None or len(run.records) < 2:
        return None
    due = sorted(one.due_s for one in run.records)
    half_s, last_s = due[len(due) // 2], due[-1]
    arrived = sum(half_s < one <= last_s for one in due)
    answered = sum(half_s < one.start_s + one.end_s <= last_s for one in run.records if one.is_complete)
    return answered / arrived if arrived else None
