"""Two evaluations of the same items: which answers flipped, and whether that can be chance (McNemar's exact test)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from qserve.errors import UsageError
from qserve.evaluation.results import EvalResult

__all__ = ["Flip", "TaskDiff", "compare", "mcnemar"]


@dataclass(frozen=True)
class Flip:
    """An item that one of the two got right and the other wrong."""

    doc_id: int
    target: str
    before: str
    after: str
    is_better: bool


@dataclass(frozen=True)
class TaskDiff:
    """One task, item by item.

    Attributes:
        task: its name.
        metric: the figure that says whether an item is right.
        num_items: items that both answered.
        before: share of right ones in the first result.
        after: the same in the second.
        flips: items that are right in one only.
        p_value: probability of a difference at least so large if neither is better.
        largest_logprob_difference: of the choices' log-likelihoods; None for generated answers.
    """

    task: str
    metric: str
    num_items: int
    before: float
    after: float
    flips: tuple[Flip, ...]
    p_value: float
    largest_logprob_difference: float | None


def compare(first: EvalResult, second: EvalResult) -> list[TaskDiff]:
    """Every task that both hold, by the items that both answered. Raises UsageError where there is none."""
    tasks = [task for task in first.lm_eval["samples"] if task in second.lm_eval["samples"]]
    diffs = [diff for task in tasks if (diff := _task(task, first.samples(task), second.samples(task))) is not None]
    if not diffs:
        raise UsageError(
            "the two results have no task with right and wrong answers in common; the first has "
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
    both = sorted(set(before) & set(after))
    metric = _metric(before[both[0]]) if both else None
    if metric is None:
        return None
    changed = [doc for doc in both if before[doc]["doc_hash"] != after[doc]["doc_hash"]]
    if changed:
        raise UsageError(
            f"{task}: item {changed[0]} is another question in the second result; the task's data changed between them"
        )
    flips = tuple(
        Flip(doc, str(after[doc].get("target", "")), _answer(before[doc]), _answer(after[doc]),
             is_better=after[doc][metric] > before[doc][metric])
        for doc in both if before[doc][metric] != after[doc][metric]
    )  # fmt: skip
    num_better = sum(flip.is_better for flip in flips)
    return TaskDiff(
        task=task,
        metric=metric,
        num_items=len(both),
        before=sum(before[doc][metric] for doc in both) / len(both),
        after=sum(after[doc][metric] for doc in both) / len(both),
        flips=flips,
        p_value=mcnemar(num_better, len(flips) - num_better),
        largest_logprob_difference=_drift([(before[doc], after[doc]) for doc in both]),
    )


def _metric(sample: Mapping[str, Any]) -> str | None:
    """The figure of an item that is 0 or 1; perplexities have none."""
    names = [name for name in sample.get("metrics", ()) if sample.get(name) in (0, 1)]
    return next((name for name in ("exact_match", "acc") if name in names), names[0] if names else None)


def _answer(sample: Mapping[str, Any]) -> str:
    answers = sample["filtered_resps"]
    if _has_logprobs(answers):
        return f"choice {max(range(len(answers)), key=lambda index: float(answers[index][0]))}"
    return str(answers[0] if isinstance(answers, list) else answers)


def _has_logprobs(answers: Any) -> bool:
    return bool(answers) and isinstance(answers[0], list | tuple) and len(answers[0]) == 2


def _drift(pairs: list[tuple[Mapping[str, Any], Mapping[str, Any]]]) -> float | None:
    differences = [
        abs(float(one[0]) - float(other[0]))
        for before, after in pairs
        if _has_logprobs(before["filtered_resps"])
        for one, other in zip(before["filtered_resps"], after["filtered_resps"], strict=False)
    ]
    return max(differences, default=None)
