"""One model at several quantizations, one after the other: memory, speed, and answers to the same items."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from qserve.errors import UsageError
from qserve.evaluation import server
from qserve.evaluation.comparison import diff
from qserve.evaluation.comparison.diff import TaskDiff
from qserve.evaluation.comparison.load import LoadFigures
from qserve.evaluation.comparison.questions import Questions
from qserve.evaluation.harness import Progress
from qserve.evaluation.results import EvalResult, Score
from qserve.planner.speed.price import hourly_price_of
from qserve.units import format_bytes

__all__ = [
    "Candidate",
    "advice",
    "answers_folder",
    "candidates_of",
    "is_complete",
    "main_score",
    "measure",
    "recommended",
    "summary_of",
    "unscorable_in",
    "verdict",
]

_MEASURED = "measured.json"
# A flipped item more or less is noise; a difference that chance alone makes in one of twenty comparisons is not.
_SIGNIFICANT = 0.05
# A ratio of two throughputs below this is noise of the measurement.
_SAME_SPEED = 1.1


@dataclass(frozen=True, repr=False)
class Candidate:
    """One quantization, measured. `diffs` are against the first candidate; empty for that one itself.

    `memory` is the worker's GET /v1/qserve/memory, `start_s` the seconds from nothing to the first answer,
    `usd_per_hour` the price of its devices, where it is known.
    """

    quant: str
    about: Mapping[str, Any]
    memory: Mapping[str, Any]
    planned_bytes: int
    start_s: float
    load: LoadFigures
    result: EvalResult
    diffs: tuple[TaskDiff, ...] = ()
    usd_per_hour: float | None = None

    def __repr__(self) -> str:
        accuracy = f"accuracy {self.accuracy:.4f}, " if main_scores(self.result) else ""
        return f"<Candidate {self.quant}: {accuracy}{format_bytes(self.held_bytes)} of weights>"

    @property
    def held_bytes(self) -> int:
        """Weights as measured, the figure that a quantization changes; planned where the engine does not tell."""
        return int(self.memory.get("weights_bytes") or self.planned_bytes)

    @property
    def accuracy(self) -> float:
        """Mean of the tasks' main figures."""
        scores = main_score(self.result)
        return sum(scores.values()) / max(1, len(scores))

    @property
    def answer_tokens(self) -> float | None:
        """Mean tokens of a generated answer, its thought included; None where nothing was generated or told."""
        counted = [counts for counts in self.result.outcomes().values() if counts.mean_tokens is not None]
        num_answers = sum(counts.num_answers for counts in counted)
        return sum((one.mean_tokens or 0.0) * one.num_answers for one in counted) / num_answers if counted else None

    @property
    def tokens_per_right(self) -> float | None:
        """Tokens generated for each right answer: a quantization that thinks longer, or errs more, pays more."""
        outcomes = self.result.outcomes()
        counted = [(score, outcomes[score.task]) for score in main_scores(self.result) if score.task in outcomes]
        tokens = sum((counts.mean_tokens or 0.0) * counts.num_answers for _, counts in counted)
        right = sum(score.value * counts.num_answers for score, counts in counted)
        return tokens / right if tokens and right else None

    @property
    def seconds_per_right(self) -> float | None:
        """What these tokens take of the server, at the throughput of the load."""
        if self.tokens_per_right is None or not self.load.tokens_per_s:
            return None
        return self.tokens_per_right / self.load.tokens_per_s

    @property
    def usd_per_right(self) -> float | None:
        """What these seconds cost; None where no price of the devices is known."""
        if self.seconds_per_right is None or self.usd_per_hour is None:
            return None
        return self.seconds_per_right * self.usd_per_hour / 3600

    @property
    def stderr(self) -> float:
        """Standard error of `accuracy`: tasks are independent of each other, and each one's comes from lm-eval."""
        scores = main_scores(self.result)
        return math.sqrt(sum((score.stderr or 0.0) ** 2 for score in scores)) / max(1, len(scores))


def measure(
    questions: Questions,
    quant: str,
    server_at: tuple[str, str],
    folder: Path,
    start_s: float,
    phase: Callable[[str], None],
    progress: Progress,
) -> None:
    """Measure the service at `server_at` (URL, key) and write all of it to `folder`: load, answers, memory.

    `phase` hears what is done from now on.
    """
    served = questions.served(*server_at, folder)
    phase("load test")
    load = questions.load(served)
    phase("answers")
    result = questions.result(served, answers_folder(folder), progress)
    entry = next(one for one in server.report_of(*server_at)["data"] if one["worker"] == questions.role)
    planned = sum(device["weights_bytes"] for device in entry["planned"]["devices"])
    measured = {
        "quant": quant,
        "memory": entry["memory"],
        "planned_bytes": planned,
        "start_s": round(start_s, 2),
        "load": asdict(load),
        "devices": [device["name"] for device in entry["planned"]["devices"]],
    }
    (folder / _MEASURED).write_text(json.dumps(measured, indent=1))
    result.save(folder)  # last: a folder with a result is complete


def answers_folder(folder: Path) -> Path:
    """Where `measure` keeps answers as they come."""
    return folder / "cache"


def is_complete(folder: Path) -> bool:
    """Whether `measure` came to its end here."""
    return (folder / "result.json").is_file() and (folder / _MEASURED).is_file()


def candidates_of(folders: Sequence[Path], prices: dict[str, Any] | None = None) -> list[Candidate]:
    """What `measure` wrote, with the differences to the first. `prices`: USD an hour by card [configs/prices.toml]."""
    found = [_read(folder, prices) for folder in folders]
    first = found[0].result
    return [found[0], *(replace(one, diffs=tuple(diff.compare(first, one.result))) for one in found[1:])]


def summary_of(one: Candidate) -> dict[str, Any]:
    """Every figure of a candidate as plain JSON; the answers themselves stay with its result."""
    return {
        "quant": one.quant,
        "about": dict(one.about),
        "memory": dict(one.memory),
        "weights_bytes": one.held_bytes,
        "planned_weights_bytes": one.planned_bytes,
        "start_s": one.start_s,
        "load": asdict(one.load),
        "accuracy": round(one.accuracy, 6),
        "stderr": round(one.stderr, 6),
        "scores": main_score(one.result),
        "answer_tokens": None if one.answer_tokens is None else round(one.answer_tokens, 2),
        "tokens_per_right": None if one.tokens_per_right is None else round(one.tokens_per_right, 2),
        "seconds_per_right": one.seconds_per_right,
        "usd_per_right": one.usd_per_right,
        "outcomes": {task: asdict(counts) for task, counts in one.result.outcomes().items()},
        "unscorable": {task: asdict(items) for task, items in one.result.unscorable().items()},
        "against_first": [asdict(task) for task in one.diffs],
    }


def main_score(result: EvalResult) -> dict[str, float]:
    """One figure a task, between 0 and 1: what is right. Perplexities are no shares and are left out."""
    return {score.task: score.value for score in main_scores(result)}


def main_scores(result: EvalResult) -> list[Score]:
    """The same with all that is known of each."""
    scores: dict[str, Score] = {}
    for score in result.scores():
        if score.metric in ("exact_match", "acc_norm", "acc"):
            scores.setdefault(score.task, score)
    return list(scores.values())


def recommended(candidates: Sequence[Candidate]) -> Candidate | None:
    """The smallest that is not measurably worse than the first; None where no task has right or wrong answers."""
    first = candidates[0]
    compared = [one for one in candidates[1:] if any(task.has_answers for task in one.diffs)]
    if not compared:
        return None
    equal = [one for one in compared if not any(_is_worse(task) for task in one.diffs)]
    best = min(equal, key=lambda one: one.held_bytes, default=first)
    return best if best.held_bytes < first.held_bytes else first


def advice(candidates: Sequence[Candidate]) -> str:
    """One sentence: which to use, and what it costs against the first; or why none is recommended."""
    first, best = candidates[0], recommended(candidates)
    if best is None:
        return f"No recommendation: these tasks have no right or wrong answers; compare the drift with {first.quant}"
    if best is first:
        return f"Stay with {first.quant}: no smaller one is as accurate on these items"
    return f"Use {verdict(best, first)}"


def verdict(one: Candidate, first: Candidate) -> str:
    """ "int8: 43 % smaller, 2.4 × slower, same answers (0 of 480 changed)"."""
    return f"{one.quant}: {_smaller(one, first)}, {_faster(one, first)}{_changed(one)}"


def _smaller(one: Candidate, first: Candidate) -> str:
    percent = round(100 * (1 - one.held_bytes / first.held_bytes)) if first.held_bytes else 0
    return "same size" if not percent else f"{percent} % smaller" if percent > 0 else f"{-percent} % larger"


def _faster(one: Candidate, first: Candidate) -> str:
    ratio = one.load.tokens_per_s / first.load.tokens_per_s
    if 1 / _SAME_SPEED < ratio < _SAME_SPEED:
        return "same speed"
    return f"{ratio:.1f} × faster" if ratio > 1 else f"{1 / ratio:.1f} × slower"


def _changed(one: Candidate) -> str:
    compared = [task for task in one.diffs if task.has_answers]
    changed, items = sum(task.num_changed for task in compared), sum(task.num_items for task in compared)
    if not items:
        return ""
    worse = [
        f"{task.task} ({100 * task.before:.1f} → {100 * task.after:.1f} %)" for task in compared if _is_worse(task)
    ]
    if not changed:
        return f", same answers (0 of {items:,} changed)"
    loss = f"worse on {', '.join(worse)}" if worse else "no measurable loss"
    return f", {changed:,} of {items:,} answers changed, {loss}"


def unscorable_in(candidates: Sequence[Candidate], min_share: float = 0.0) -> list[str]:
    """A sentence for each task of which more than this share of the items can't be scored; it names the quantizations
    where not all of them left out the same.
    """
    found: dict[str, list[str]] = {}
    for one in candidates:
        for task, unscorable in one.result.unscorable().items():
            if unscorable.share > min_share:
                found.setdefault(unscorable.sentence(task), []).append(one.quant)
    return [
        sentence if len(quants) == len(candidates) else f"{', '.join(quants)}: {sentence}"
        for sentence, quants in found.items()
    ]


def _is_worse(task: TaskDiff) -> bool:
    return task.after < task.before and task.p_value < _SIGNIFICANT


def _read(folder: Path, prices: dict[str, Any] | None) -> Candidate:
    document = json.loads((folder / _MEASURED).read_text())
    result = EvalResult.load(folder)
    try:
        load = LoadFigures(**document["load"])
    except TypeError:
        raise UsageError(f"{folder} was written by another version of qserve; name another folder with --out") from None
    hourly = [hourly_price_of(name, prices) for name in document.get("devices", ())]
    usd = sum(price for price in hourly if price is not None) if hourly and None not in hourly else None
    return Candidate(
        document["quant"],
        result.about,
        document["memory"],
        document["planned_bytes"],
        document["start_s"],
        load,
        result,
        usd_per_hour=usd,
    )
