"""What a simulated run comes to: latencies in milliseconds, rates, shares of time."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from qserve.planner.speed.load import Load
from qserve.planner.speed.simulated import Finished, SimulatedRun

__all__ = ["NO_TARGETS", "Figures", "KeptCount", "Summary", "Targets", "figures_of", "percentile"]


@dataclass(frozen=True)
class Targets:
    """What a request must keep to count: milliseconds to the first token, and a token after it. None: any."""

    ttft_ms: float | None = None
    tpot_ms: float | None = None

    def __bool__(self) -> bool:
        return self.ttft_ms is not None or self.tpot_ms is not None

    def kept_by(self, some: Iterable[Finished], ttft_factor: float = 1.0, tpot_factor: float = 1.0) -> int:
        """How many of the requests keep them, also where their times come out longer by the factors."""
        most_ttft, most_tpot = (math.inf if most is None else most for most in (self.ttft_ms, self.tpot_ms))
        kept = 0
        for _, ttft_s, e2e_s, _, tokens, _ in some:
            if 1000 * ttft_s * ttft_factor <= most_ttft:
                tpot_s = (e2e_s - ttft_s) / (tokens - 1) if tokens > 1 else 0.0
                kept += 1000 * tpot_s * tpot_factor <= most_tpot
        return kept


NO_TARGETS = Targets()
_SLACK = 1e-9


@dataclass
class KeptCount:
    """Counts, as answers of a run of `total` requests come, how many keep the targets; for `simulate_while`.

    It says when no more than `share` of them can, whatever comes; not that they will: some may never be answered.
    The factors are those of `Targets.kept_by`.
    """

    targets: Targets
    total: int
    share: float
    ttft_factor: float = 1.0
    tpot_factor: float = 1.0
    answered: int = 0
    kept: int = 0

    def can_reach(self, fresh: Sequence[Finished]) -> bool:
        """Whether `share` is still within reach after these answers, too."""
        self.answered += len(fresh)
        self.kept += self.targets.kept_by(fresh, self.ttft_factor, self.tpot_factor)
        return self.answered - self.kept <= (1 - self.share) * self.total + _SLACK

    def is_open(self, fresh: Sequence[Finished]) -> bool:
        """Whether these answers, too, leave it open which side of `share` the run comes to."""
        return self.can_reach(fresh) and not self.has_reached

    @property
    def has_reached(self) -> bool:
        """Whether `share` of all requests is kept whatever comes."""
        return self.kept >= self.share * self.total


@dataclass(frozen=True)
class Summary:
    """Milliseconds over all answers."""

    mean: float
    p50: float
    p90: float
    p99: float


@dataclass(frozen=True)
class Figures:
    """One load on all replicas. `prefill_share` is the part of the time in steps with prompts."""

    ttft_ms: Summary
    tpot_ms: Summary
    e2e_ms: Summary
    output_tokens_per_s: float
    requests_per_s: float
    prefill_share: float
    preemptions: int
    peak_running: int
    num_requests: int
    finished: tuple[Finished, ...] = ()

    def kept_share(self, targets: Targets, ttft_factor: float = 1.0, tpot_factor: float = 1.0) -> float:
        """The share of requests that keep the targets: goodput over throughput."""
        kept = targets.kept_by(self.finished, ttft_factor, tpot_factor)
        return kept / len(self.finished) if self.finished else 0.0


def percentile(values: Sequence[float], share: float) -> float:
    """Of sorted values, linear between neighbours, as numpy's default; 0.0 of none."""
    if not values:
        return 0.0
    place = (len(values) - 1) * share
    low = int(place)
    high = min(low + 1, len(values) - 1)
    return values[low] + (values[high] - values[low]) * (place - low)


def figures_of(run: SimulatedRun, load: Load, replicas: int = 1) -> Figures:
    """Figures of `replicas` servers of which `run` is one."""
    done = run.finished
    duration = (_time_of_users(run, load, replicas) if load.users else run.duration_s) or 1e-9
    return Figures(
        ttft_ms=_summary([one.ttft_s for one in done]),
        tpot_ms=_summary([(e2e - ttft) / (tokens - 1) for _, ttft, e2e, _, tokens, _ in done if tokens > 1]),
        e2e_ms=_summary([one.e2e_s for one in done]),
        output_tokens_per_s=replicas * sum(one.output_tokens for one in done) / duration,
        requests_per_s=replicas * len(done) / duration,
        prefill_share=run.prefill_s / duration,
        preemptions=run.preemptions,
        peak_running=run.peak_running,
        num_requests=len(done),
        finished=done,
    )


def _time_of_users(run: SimulatedRun, load: Load, replicas: int) -> float:
    """Seconds that users take for as many answers while all of them ask: each does once in a pause and an answer.

    A run begins while they come and ends with pauses of those that ask last, in which the others do not ask again; for
    short answers that is a third of it. Answers count that were asked for while all of them did.
    """
    total = load.users or 1
    users = load.shared_by(replicas).users or 1
    ends = sorted(one.arrival_s + one.e2e_s for one in run.finished)
    follow = len(ends) - users
    from_s = max((one.arrival_s for one in run.finished if one.place < users), default=0.0)
    until_s = ends[follow - 1] if follow > 0 else 0.0
    answers = [one.e2e_s for one in run.finished if from_s <= one.arrival_s <= until_s]
    answers = answers or [one.e2e_s for one in run.finished]
    mean_s = sum(answers) / len(answers) if answers else 0.0
    pauses = len(ends) + run.rejected
    return replicas * (len(ends) * mean_s + pauses * load.think_s) / total


def _summary(seconds: list[float]) -> Summary:
    ms = sorted(1000 * value for value in seconds)
    mean = sum(ms) / len(ms) if ms else 0.0
    return Summary(mean, percentile(ms, 0.5), percentile(ms, 0.9), percentile(ms, 0.99))
