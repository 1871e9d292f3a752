"""Rounds of bench/speed_against_engines.py: kept as lines of JSON, planned, learned from, and told as a table."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from qserve.core.checkpoint import Checkpoint
from qserve.core.hardware import Hardware
from qserve.hub import resolve
from qserve.planner.plan import Plan
from qserve.planner.speed.calibrate import residual_of
from qserve.planner.speed.calibration import CorrectedSteps, Measured, StepFactors
from qserve.planner.speed.estimate import Replica, device_of, replica_of
from qserve.planner.speed.load import Load
from qserve.planner.speed.served import ServedRequest, loads_of, replayed
from qserve.planner.speed.terms.cpu import CpuRates
from qserve.planner.speed.terms.cpu_middle import middle_of
from qserve.service.machine import hardware_of
from qserve.service.measured_speed import SAME_WEATHER_S

__all__ = ["MOST_OTHERS", "Record", "Round", "Subject", "drift_between", "line_of", "mean_of", "table"]

BEFORE, LEARNED = 0.15, 0.05
MOST_OTHERS = 0.06
"""Of the machine, that others may have in a round that counts."""
METRICS = {"ttft_ms": "TTFT ms", "tpot_ms": "TPOT ms", "output_tokens_per_s": "tokens/s"}
Figures = dict[str, float]
Planned = Callable[["Round"], Figures]


@dataclass(frozen=True)
class Subject:
    """One engine with one shape."""

    engine: str
    shape: str

    def __str__(self) -> str:
        """For people."""
        return f"{self.engine}, {self.shape}"


@dataclass(frozen=True)
class Round:
    """One load once: what it took, and what the machine could do around it.

    Even rounds of a load (`turn`) teach, odd ones are judged. `served` are its requests by the gateway's clock: what
    `qserve plan` learns by. `drift` and `others`: how far a rate moved over it, and what others computed.
    """

    engine: str
    shape: str
    turn: int
    load: Load
    figures: Figures
    rates: CpuRates
    drift: float
    others: float
    is_clean: bool
    served: tuple[ServedRequest, ...]

    @property
    def subject(self) -> Subject:
        return Subject(self.engine, self.shape)

    @property
    def streams(self) -> int:
        return self.load.concurrency or 1

    @property
    def teaches(self) -> bool:
        return self.turn % 2 == 0

    def to_json(self) -> dict[str, Any]:
        """JSON's types alone."""
        names = ("input_tokens", "output_tokens", "concurrency", "num_prompts", "lengths")
        load = {name: getattr(self.load, name) for name in names}
        return {**asdict(self), "load": load, "rates": self.rates.to_json()}

    @classmethod
    def from_json(cls, row: dict[str, Any]) -> Round:
        """Of what `to_json` wrote."""
        lengths = tuple((one, other) for one, other in row["load"].get("lengths", ()))
        load = Load(**{**row["load"], "lengths": lengths}, jitter=0.0)
        served = tuple(ServedRequest(**one) for one in row["served"])
        return cls(**{**row, "load": load, "served": served, "rates": CpuRates.from_json(row["rates"])})


class Record:
    """The file of all rounds: a line each, as they come, beside the plans that were made before."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def note(self, **what: Any) -> None:
        """Adds a line."""
        with self.path.open("a") as file:
            file.write(json.dumps(what) + "\n")

    def rounds(self, subject: Subject) -> list[Round]:
        """In the order in which they ran."""
        found = (Round.from_json(line["round"]) for line in self._lines() if "round" in line)
        return [one for one in found if one.subject == subject]

    def plans(self) -> dict[Subject, tuple[Plan, Checkpoint]]:
        """What was planned of each subject before its first round."""
        found: dict[Subject, tuple[Plan, Checkpoint]] = {}
        for line in self._lines():
            if "plan" in line:
                subject = Subject(line["engine"], line["shape"])
                found.setdefault(subject, (Plan.from_json(line["plan"]), resolve(line["folder"])))
        return found

    def failures(self) -> dict[Subject, str]:
        """Why a subject ended early, where it did and was not taken up again."""
        found: dict[Subject, str] = {}
        for line in self._lines():
            if "failed" in line:
                found[Subject(line["engine"], line["shape"])] = line["failed"]
            elif "plan" in line:
                found.pop(Subject(line["engine"], line["shape"]), None)
        return found

    def _lines(self) -> list[dict[str, Any]]:
        """A last line that was cut off is left out."""
        lines = self.path.read_text().splitlines() if self.path.exists() else []
        return [json.loads(line) for line in lines if line.endswith("}")]


@cache
def this_machine() -> Hardware:
    """Looked at once: it takes longer than the plans of a record."""
    return hardware_of("none")


@dataclass(frozen=True)
class Judge:
    """Plans the rounds of one subject, before and after learning, each with the middle of what was measured of the CPU
    within five minutes of it, as `qserve plan` does."""

    plan: Plan
    checkpoint: Checkpoint
    rounds: Sequence[Round]

    def before(self, one: Round) -> Figures:
        """What is planned of a CPU that was measured, and of an engine that never ran on it."""
        return _figures(self._replica(one), one.load)

    def in_their_order(self, one: Round) -> Figures:
        """The same of the requests as they came, those that shared the idle engine's first step sharing it.

        Which these are is a race of milliseconds, that no plan can know: what is left is how long steps take.
        """
        replica = self._replica(one)
        planned = [two for _, two in replayed(replica.steps, replica.limits, one.served)]
        took_s = max(two.arrival_s + two.e2e_s for two in planned) - min(two.arrival_s for two in planned)
        return {
            "ttft_ms": 1000 * statistics.fmean(two.ttft_s for two in planned),
            "tpot_ms": 1000 * statistics.fmean(two.tpot_s for two in planned),
            "output_tokens_per_s": sum(two.output_tokens for two in planned) / took_s,
        }

    def learned(self, one: Round) -> Figures:
        """The same after `qserve plan` has seen the rounds that teach. Call where `factors` is not None."""
        assert self.factors is not None
        replica = self._replica(one)
        return _figures(replace(replica, steps=CorrectedSteps(replica.steps, self.factors)), one.load)

    @cached_property
    def factors(self) -> StepFactors | None:
        """From the requests of the rounds that teach, as from those of a run in the store."""
        taught = [one for one in self.rounds if one.teaches]
        parts = [(self._replica(one).steps, part) for one in taught for part in loads_of(one.served)]
        others = statistics.median(one.others for one in taught) if taught else 0.0
        return residual_of(parts, self._replica(taught[0]).limits, others) if parts else None

    def _replica(self, around: Round) -> Replica:
        device = device_of(self.plan, this_machine())
        assert device is not None, "a plan for this CPU"
        near = [one.rates for one in self.rounds if abs(_middle_s(one) - _middle_s(around)) <= SAME_WEATHER_S]
        return replica_of(self.plan, self.checkpoint.spec, device, Measured(middle_of(near or [around.rates])))


def _middle_s(one: Round) -> float:
    return statistics.fmean(served.at_s + served.e2e_s / 2 for served in one.served)


def _figures(replica: Replica, load: Load) -> Figures:
    found = replica.run(load)
    return {
        "ttft_ms": found.ttft_ms.mean,
        "tpot_ms": found.tpot_ms.mean,
        "output_tokens_per_s": found.output_tokens_per_s,
    }


def mean_of(one: CpuRates, other: CpuRates) -> CpuRates:
    """Halfway between two measurements, figure by figure."""

    def between(
        these: Sequence[tuple[int, float]], those: Sequence[tuple[int, float]]
    ) -> tuple[tuple[int, float], ...]:
        return tuple((rows, (a + b) / 2) for (rows, a), (_, b) in zip(these, those, strict=True))

    return replace(
        one,
        read_bytes_per_s=(one.read_bytes_per_s + other.read_bytes_per_s) / 2,
        gemm_flop_per_s=(one.gemm_flop_per_s + other.gemm_flop_per_s) / 2,
        linear_ps=between(one.linear_ps, other.linear_ps),
        large_ps=between(one.large_ps, other.large_ps),
        unfused_ps=between(one.unfused_ps, other.unfused_ps),
        coded_ps=tuple((name, between(a, b)) for (name, a), (_, b) in zip(one.coded_ps, other.coded_ps, strict=True)),
        fewer=None if one.fewer is None or other.fewer is None else mean_of(one.fewer, other.fewer),
    )


def drift_between(one: CpuRates, other: CpuRates) -> float:
    """How far apart the two are: products of one row, of some and of most, as a share; the mean of both sizes."""
    some = [
        (rows, a / b)
        for name in ("linear_ps", "large_ps")
        for (rows, a), (_, b) in zip(getattr(one, name), getattr(other, name), strict=True)
    ]
    by_rows = {rows: [ratio for count, ratio in some if count == rows] for rows in (1, 16, max(some)[0])}
    return max(abs(statistics.fmean(ratios) - 1) for ratios in by_rows.values())


def line_of(one: Round) -> str:
    """What came of a round."""
    figures = ", ".join(f"{METRICS[name]} {value:.1f}" for name, value in one.figures.items())
    return (
        f"{one.subject}, {one.streams} streams, {'learn' if one.teaches else 'judge'}: {figures}; "
        f"{one.rates.read_bytes_per_s / 1e9:.1f} GB/s, moved {one.drift:.0%}, others {one.others:.0%}"
        f"{'' if one.is_clean else ' (not clean)'}"
    )


def table(record: Record) -> Iterator[tuple[str, list[bool]]]:
    """Rows of Markdown, and of each whether its figures are further off than is allowed."""
    yield "| | streams | | planned / measured | off | rounds | after learning, planned / measured | off | rounds |", []
    yield "|---|---|---|---|---|---|---|---|---|", []
    for subject, (plan, checkpoint) in record.plans().items():
        everyone = record.rounds(subject)
        judge = Judge(plan, checkpoint, _clean(everyone))
        for streams in sorted({one.streams for one in everyone}):
            mine = [one for one in everyone if one.streams == streams]
            rounds = _clean(mine)
            for metric in METRICS:
                yield _row(judge, rounds, metric, f"| {subject} | {streams} ")
            yield f"| | | rounds | {_weather(rounds, len(mine))} | | | | | |", []
            yield f"| | | in their order | {_in_their_order(judge, rounds)} | | | | | |", []
    for subject, why in record.failures().items():
        yield f"| {subject} | | ended early: {why.splitlines()[0] if why else '?'} | | | | | | |", [True]


def _clean(rounds: Sequence[Round]) -> list[Round]:
    """Of each load those that nothing disturbed; where too few of a kind are left those in which nobody else computed,
    however far rates moved; and where those are too few, all."""
    found = []
    for streams in {one.streams for one in rounds}:
        mine = [one for one in rounds if one.streams == streams]
        choices = [[one for one in mine if one.is_clean], [one for one in mine if one.others <= MOST_OTHERS], mine]
        found += next((some for some in choices if _is_enough(some)), mine)
    return [one for one in rounds if one in found]


def _is_enough(rounds: Sequence[Round]) -> bool:
    return all(sum(one.teaches == teaches for one in rounds) >= 2 for teaches in (True, False))


def _row(judge: Judge, rounds: Sequence[Round], metric: str, start: str) -> tuple[str, list[bool]]:
    judged = [one for one in rounds if not one.teaches]
    before, off = _held_against(judge.before, rounds, metric)
    misses = [abs(off) > BEFORE]
    cells = [f"{before} | {_signed(off, BEFORE)} | {_spread(rounds, metric)}"]
    if judge.factors is None or not judged:
        cells.append("nothing was learned ! | | ")
        misses.append(True)
    else:
        after, off = _held_against(judge.learned, judged, metric)
        cells.append(f"{after} | {_signed(off, LEARNED)} | {_spread(judged, metric)}")
        misses.append(abs(off) > LEARNED)
    return f"{start}| {METRICS[metric]} | {' | '.join(cells)} |", misses


def _held_against(planned: Planned, rounds: Sequence[Round], metric: str) -> tuple[str, float]:
    """Medians of planned and of measured, and how far the one is from the other."""
    mine = statistics.median(planned(one)[metric] for one in rounds)
    taken = statistics.median(one.figures[metric] for one in rounds)
    return f"{mine:.4g} / {taken:.4g}", mine / taken - 1


def _in_their_order(judge: Judge, rounds: Sequence[Round]) -> str:
    """How far plans are off that know which prompts shared the first step; not judged."""
    offs = (f"{METRICS[name]} {_signed(_held_against(judge.in_their_order, rounds, name)[1], 1.0)}" for name in METRICS)
    return "before learning, with the prompts that shared the first step: " + ", ".join(offs)


def _spread(rounds: Sequence[Round], metric: str) -> str:
    """How far single rounds lie from their median: the furthest ones, and how many there are."""
    values = [one.figures[metric] for one in rounds]
    middle = statistics.median(values)
    return f"{len(values)}: {100 * (min(values) / middle - 1):+.0f} to {100 * (max(values) / middle - 1):+.0f} %"


def _signed(off: float, most: float) -> str:
    return f"{100 * off:+.1f} %{' !' * (abs(off) > most)}"


def _weather(rounds: Iterable[Round], ran: int) -> str:
    some = list(rounds)
    drift, others = (statistics.median(getattr(one, name) for one in some) for name in ("drift", "others"))
    return f"{sum(one.is_clean for one in some)} clean of {ran}; rates moved {drift:.0%}, others {others:.0%} (medians)"
