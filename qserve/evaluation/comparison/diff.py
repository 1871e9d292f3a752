"""Two evaluations of the same items: which answers flipped, and whether that can be chance (McNemar's exact test)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from qserve.errors import UsageError
from qserve.evaluation.results import EvalResult

__all__ = ["Drift", "Flip", "TaskDiff", "compare", "mcnemar"]

_LOG_LIKELIHOOD = "log-likelihood"
_Pair = tuple[Mapping[str, Any], Mapping[str, Any]]


@dataclass(frozen=True)
class Flip:
    """An item that one of the two got right and the other wrong."""

    doc_id: int
    target: str
    before: str
    after: str
    is_better: bool


@dataclass(frozen=True)
class Drift:
    """How far the scores of the same texts (log-likelihoods, rewards) lie apart, as absolute differences."""

    num_scores: int
    mean: float
    largest: float

    def __str__(self) -> str:
        return f"scores differ by {self.mean:.4g} in the mean, {self.largest:.4g} at most"


@dataclass(frozen=True)
class TaskDiff:
    """One task, item by item.

    Attributes:
        task: its name.
        metric: the figure that says whether an item is right; "log-likelihood" where nothing is right or wrong.
        num_items: items that both answered.
        before: mean of the figure over these items in the first result: the share of right ones.
        after: the same in the second.
        flips: items that are right in one only.
        p_value: probability of a difference at least so large if neither is better.
        drift: of the scores behind the answers; None for generated ones.
        num_changed: items with another answer, right or wrong.
    """

    task: str
    metric: str
    num_items: int
    before: float
    after: float
    flips: tuple[Flip, ...]
    p_value: float
    drift: Drift | None
    num_changed: int = 0

    @property
    def has_answers(self) -> bool:
        """Whether items are right or wrong."""
        return self.metric != _LOG_LIKELIHOOD


def compare(first: EvalResult, second: EvalResult) -> list[TaskDiff]:
    """Every task that both hold, by the items that both answered. Raises UsageError where there is none."""
    tasks = [task for task in first.lm_eval["samples"] if task in second.lm_eval["samples"]]
    diffs = [diff for task in tasks if (diff := _task(task, first.samples(task), second.samples(task))) is not None]
    if not diffs:
        raise UsageError(
            "the two results have no task in common whose items can be compared; the first has "
            f"{', '.join(first.lm_eval['samples'])}, the second {', '.join(second.lm_eval['samples'])}"
        )
    return diffs


def mcnemar(num_better: int, num_worse: int) -> float:
    """Two-sided exact McNemar test: the binomial probability of a split of the flips at least as uneven as this one."""
    flips = num_better + num_worse
    if not flips:
        return 1.0
    tail = sum(math.comb(flips, k) for k in range(min(num_better, num_worse) + 1)) / 2**flips
    return float(min(1.0, 2 * tail))


def _task(task: str, before: Mapping[int, Any], after: Mapping[int, Any]) -> TaskDiff | None:
    # One that the server refused is there, and has no answer.
    both = sorted(doc for doc in set(before) & set(after) if _has_answer(before[doc]) and _has_answer(after[doc]))
    pairs = [(before[doc], after[doc]) for doc in both]
    changed = [doc for doc in both if before[doc]["doc_hash"] != after[doc]["doc_hash"]]
    if changed:
        raise UsageError(
            f"{task}: item {changed[0]} is a different question in the second result; the task's data changed"
        )
    metric = _metric([sample for pair in pairs for sample in pair])
    if metric is None:
        return None
    figures = [(_figure(one, metric), _figure(other, metric)) for one, other in pairs]
    flips = () if metric == _LOG_LIKELIHOOD else tuple(_flips(both, pairs, metric))
    num_better = sum(flip.is_better for flip in flips)
    return TaskDiff(
        task=task,
        metric=metric,
        num_items=len(both),
        before=sum(one for one, _ in figures) / len(both),
        after=sum(other for _, other in figures) / len(both),
        flips=flips,
        p_value=mcnemar(num_better, len(flips) - num_better),
        drift=_drift(pairs),
        num_changed=0 if metric == _LOG_LIKELIHOOD else sum(_answer(one) != _answer(other) for one, other in pairs),
    )


def _has_answer(sample: Mapping[str, Any]) -> bool:
    return bool(sample["filtered_resps"])


def _metric(samples: Sequence[Mapping[str, Any]]) -> str | None:
    """The figure that is 0 or 1 for every item; else the log-likelihood of whole texts, if that is what they have."""
    if not samples:
        return None
    names = [name for name in samples[0].get("metrics", ()) if all(sample.get(name) in (0, 1) for sample in samples)]
    if names:
        return next((name for name in ("exact_match", "acc") if name in names), str(names[0]))
    return _LOG_LIKELIHOOD if all(_is_text_score(sample) for sample in samples) else None


def _figure(sample: Mapping[str, Any], metric: str) -> float:
    return float(sample["filtered_resps"][0] if metric == _LOG_LIKELIHOOD else sample[metric])


def _flips(docs: Sequence[int], pairs: Sequence[_Pair], metric: str) -> Iterator[Flip]:
    for doc, (one, other) in zip(docs, pairs, strict=True):
        if one[metric] != other[metric]:
            is_better = other[metric] > one[metric]
            yield Flip(doc, str(other.get("target", "")), _answer(one), _answer(other), is_better)


def _answer(sample: Mapping[str, Any]) -> str:
    answers = sample["filtered_resps"]
    if _has_logprobs(sample):
        return f"choice {max(range(len(answers)), key=lambda index: float(answers[index][0]))}"
    return str(answers[0] if isinstance(answers, list) else answers)


def _has_logprobs(sample: Mapping[str, Any]) -> bool:
    answers = sample["filtered_resps"]
    return bool(answers) and isinstance(answers[0], list | tuple) and len(answers[0]) == 2


def _is_text_score(sample: Mapping[str, Any]) -> bool:
    answers = sample["filtered_resps"]
    return isinstance(answers, list) and bool(answers) and isinstance(answers[0], float)


def _scores(sample: Mapping[str, Any]) -> list[float]:
    if _has_logprobs(sample):
        return [float(score) for score, _ in sample["filtered_resps"]]
    return [float(sample["filtered_resps"][0])] if _is_text_score(sample) else []


def _drift(pairs: Sequence[_Pair]) -> Drift | None:
    apart = [abs(a - b) for one, other in pairs for a, b in zip(_scores(one), _scores(other), strict=False)]
    return Drift(len(apart), sum(apart) / len(apart), max(apart)) if apart else None
