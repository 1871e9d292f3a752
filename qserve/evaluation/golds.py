"""Items of multiple choice whose right answer is none of their choices: found when a task is loaded, and left out.

lm-eval (0.4.13) warns of some of them and counts them as wrong, reads -1 as the last choice, and fails on others.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from qserve.errors import UnusableResult

__all__ = ["Unscorable", "leave_out_unscorable", "unscorable_of", "why_unscorable"]

_FOUND = "qserve_unscorable"
_DOCS = "qserve_docs"
_MOST_NAMED = 5


@dataclass(frozen=True)
class Unscorable:
    """The items of one task that are left out, of `num_items`; `whys` says why, by their number in the data, from 0."""

    num_items: int
    whys: Mapping[int, str]

    def within(self, limit: int | None) -> Unscorable:
        """Of what is asked when `limit` items are: those that stand before the last of these."""
        if limit is None:
            return self
        passed = [number for rank, number in enumerate(sorted(self.whys)) if number - rank < limit]
        return Unscorable(min(limit + len(passed), self.num_items), {number: self.whys[number] for number in passed})

    @property
    def share(self) -> float:
        return len(self.whys) / max(1, self.num_items)

    def sentence(self, task: str) -> str:
        """The task, how many, and the first of them by number and reason."""
        named = [f"item {number}: {why}" for number, why in list(self.whys.items())[:_MOST_NAMED]]
        more = f", and {len(self.whys) - _MOST_NAMED:,} more" if len(self.whys) > _MOST_NAMED else ""
        return f"{task}: {len(self.whys):,} of {self.num_items:,} items can't be scored ({'; '.join(named)}{more})"


def why_unscorable(gold: Any, choices: Any) -> str | None:
    """What is wrong with the right answer of an item; None where it is one of the choices, or several are."""
    if not isinstance(choices, list) or not choices:
        return "it has no choices"
    if isinstance(gold, list | tuple):
        wrong = [why for one in gold if (why := _why_no_index(one, choices)) is not None]
        return "its gold is an empty list" if not gold else (wrong[0] if wrong else None)
    if isinstance(gold, str):
        return None if gold in choices else f"gold {gold[:60]!r} is not one of its {len(choices)} choices"
    return _why_no_index(gold, choices)


def _why_no_index(gold: Any, choices: list[Any]) -> str | None:
    if gold is None or (isinstance(gold, float) and math.isnan(gold)):
        return "it has no gold"
    if not isinstance(gold, int | float) or gold != int(gold):
        return f"gold {str(gold)[:60]!r} is not the number of a choice"
    last = len(choices) - 1
    return None if 0 <= gold <= last else f"gold {int(gold)} is not one of its choices 0 to {last}"


def leave_out_unscorable(task_class: Any) -> None:
    """Have lm-eval's class of tasks ask only items that can be scored. Each task keeps what it left out."""
    if hasattr(task_class, _DOCS):
        return
    whole = task_class.eval_docs

    @functools.wraps(whole.fget)
    def eval_docs(self: Any) -> Any:
        kept = getattr(self, _DOCS, None)
        if kept is None:
            kept = _scorable(self, whole.fget(self))
            setattr(self, _DOCS, kept)
        return kept

    setattr(task_class, _DOCS, None)
    task_class.eval_docs = property(eval_docs)


def unscorable_of(task: Any) -> Unscorable | None:
    """What a loaded task left out; None for nothing."""
    found: Unscorable | None = getattr(task, _FOUND, None)
    return found if found is not None and found.whys else None


def _scorable(task: Any, docs: Any) -> Any:
    if task.OUTPUT_TYPE != "multiple_choice" or callable(task.config.process_results) or not len(docs):
        return docs  # what is right there is not told by a choice
    task.features = list(docs.features) if hasattr(docs, "features") else list(docs[0])  # lm-eval sets it after this
    found: dict[int, str] = {}
    kind: type | None = None
    for number, doc in enumerate(docs):
        gold = _gold(task, doc)
        why = why_unscorable(gold, task.doc_to_choice(doc))
        if why is None:
            # The first item decides for all of them whether several answers are right.
            kind = kind or (list if isinstance(gold, list | tuple) else int)
            if (kind is list) != isinstance(gold, list | tuple):
                why = (
                    "its gold is a list, but those of other items are not" if kind is int else "its gold is not a list"
                )
        if why is not None:
            found[number] = why
    unscorable = Unscorable(len(docs), found)
    setattr(task, _FOUND, unscorable)
    if len(found) == len(docs):
        raise UnusableResult(f"there is nothing to ask: {unscorable.sentence(str(task.config.task))}")
    kept = [number for number in range(len(docs)) if number not in found]
    if not found:
        return docs
    return docs.select(kept) if hasattr(docs, "select") else [docs[number] for number in kept]


def _gold(task: Any, doc: Any) -> Any:
    """Where choices are contexts, as in WinoGrande, the number of the right one stands in place of the text."""
    text = task.doc_to_text(doc)
    return text if isinstance(text, int) else task.doc_to_target(doc)
