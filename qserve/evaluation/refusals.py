"""Items that the server refuses (400): each is left out by name, and the others keep their answers.

lm-eval would ask each three times and then fail the whole evaluation. One such item holds a token that the model has no
embedding row for.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from qserve.client.error_text import message_of
from qserve.evaluation.golds import Unscorable

__all__ = ["REFUSED", "Refusals", "leave_out_refused"]

REFUSED = (math.nan, False)
"""In place of a log-likelihood; a server's own is a number."""
_PATCHED = "qserve_leaves_out_refused"


@dataclass
class Refusals:
    """What the server said, by the context and the continuation of a question."""

    said: dict[tuple[str, str], str] = field(default_factory=dict)

    def add(self, question: Any, refusal: str) -> None:
        """Keep one; `question` is lm-eval's key of its cache, None for a part of a rolling text."""
        self.said[_key(question)] = message_of(refusal.encode()) or "the server refused it"

    def among(self, samples: list[dict[str, Any]]) -> dict[int, str]:
        """By `doc_id`, why an item of log-likelihoods has no figure; the samples lose what stood in place of it."""
        found: dict[int, str] = {}
        for sample in samples:
            if _is_refused(sample["filtered_resps"]):
                keys = [_key(one) for one in sample["arguments"]]
                known = [self.said[key] for key in keys if key in self.said]
                found[sample["doc_id"]] = (known or list(self.said.values()) or ["the server refused it"])[0]
                sample.update(resps=[], filtered_resps=[])
        return found

    def left_out(self, result: dict[str, Any], golds: Mapping[str, Unscorable]) -> dict[str, Any]:
        """The items without a figure by task, with those of `golds`, as a result keeps them; corrects its counts."""
        told = dict(golds)
        for task, samples in result["samples"].items():
            refused = self.among(samples)
            if refused:
                passed = golds[task].whys if task in golds else {}
                num_items = len({one["doc_id"] for one in samples}) + len(passed)
                numbers = [number for number in range(num_items) if number not in passed]
                whys = {**passed, **{numbers[doc_id]: why for doc_id, why in refused.items()}}
                told[task] = Unscorable(num_items, dict(sorted(whys.items())))
                result.get("n-samples", {}).get(task, {})["effective"] = num_items - len(whys)
        return {task: asdict(one) for task, one in told.items()}


def leave_out_refused(task_class: Any) -> None:
    """Have lm-eval's class of tasks take no figure from an item that was refused."""
    if hasattr(task_class, _PATCHED):
        return
    whole = task_class.process_results

    @functools.wraps(whole)
    def process_results(self: Any, doc: Any, results: Any) -> Any:
        return {} if _is_refused(results) else whole(self, doc, results)

    setattr(task_class, _PATCHED, True)
    task_class.process_results = process_results


def _is_refused(results: Any) -> bool:
    values = [one[0] if isinstance(one, list | tuple) and one else one for one in results]
    return any(isinstance(one, float) and math.isnan(one) for one in values)


def _key(question: Any) -> tuple[str, str]:
    context, continuation = (*question, "", "")[:2] if isinstance(question, list | tuple) else (question, "")
    return str(context), str(continuation)
