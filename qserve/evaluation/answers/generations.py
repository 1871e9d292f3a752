"""The generated answers of one evaluation, by what was asked: thought, outcome, tokens. lm-eval keeps none of these.

They lie in a file beside lm-eval's own cache, a line an answer, so that an evaluation that goes on after an
interruption knows them too.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from qserve.evaluation.answers.thinking import Answer

__all__ = ["Generations", "OutcomeCounts", "counts_of", "with_generations"]


@dataclass(frozen=True)
class OutcomeCounts:
    """How the answers of a task ended. `thought_tokens`: mean tokens of an answer, thought included, where told."""

    num_answers: int
    truncated: int
    empty: int
    null: int
    num_thoughts: int
    mean_tokens: float | None

    @property
    def unusable_share(self) -> float:
        """Of answers that were cut off, empty or missing."""
        return (self.truncated + self.empty + self.null) / max(1, self.num_answers)


class Generations:
    """Answers by their question, in the order they came; `file` keeps them, None: this process only.

    A question has several answers where an item is repeated, where two items ask the same, and where an answer came
    again after an interruption.
    """

    def __init__(self, file: Path | None) -> None:
        self._file = file
        self._answers: dict[str, list[Answer]] = {}
        for line in [] if file is None or not file.is_file() else file.read_text().splitlines():
            key, _, told = line.partition(" ")
            with contextlib.suppress(ValueError, TypeError):  # a line that was cut off
                self._answers.setdefault(key, []).append(Answer(**json.loads(told)))

    def add(self, context: object, gen_kwargs: object, answer: Answer) -> None:
        """Keep one answer."""
        key = _key(context, gen_kwargs)
        self._answers.setdefault(key, []).append(answer)
        if self._file is not None:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            with self._file.open("a") as lines:  # the line break comes first: the line before may have been cut off
                lines.write(f"\n{key} {json.dumps(asdict(answer))}")

    def of(self, context: object, gen_kwargs: object, text: str, taken: set[int]) -> Answer | None:
        """The newest answer with this text to this question, one whose id is not in `taken` before others; takes it."""
        fits = [one for one in reversed(self._answers.get(_key(context, gen_kwargs), ())) if one.text == text]
        answer = next((one for one in fits if id(one) not in taken), next(iter(fits), None))
        taken.add(id(answer))
        return answer


def with_generations(result: dict[str, Any], generations: Generations) -> dict[str, Any]:
    """lm-eval's result with `generations` in each sample: plain dictionaries, one for each text of its `resps`."""
    taken: defaultdict[str, set[int]] = defaultdict(set)  # by filter: each filter has a sample of every item
    for sample in (sample for samples in result["samples"].values() for sample in samples):
        several = [
            generations.of(arguments[0], arguments[1], text, taken[sample["filter"]])
            for arguments, texts in zip(sample["arguments"], sample["resps"], strict=True)
            if len(arguments) > 1
            for text in texts
        ]
        found = [asdict(answer) for answer in several if answer is not None]
        if found:
            sample["generations"] = found
    return result


def counts_of(samples: Sequence[Mapping[str, Any]]) -> OutcomeCounts | None:
    """Of one task, each item once whatever the number of filters; None for a task that generates nothing."""
    once = {sample["doc_id"]: sample for sample in samples}.values()
    answers = [
        answer
        for sample in once
        for told in (sample, *sample.get("repeats", ()))
        for answer in told.get("generations", ())
    ]
    if not answers:
        return None
    outcomes = [answer["outcome"] for answer in answers]
    tokens = [answer["num_tokens"] for answer in answers if answer["num_tokens"] is not None]
    return OutcomeCounts(
        num_answers=len(answers),
        truncated=outcomes.count("truncated"),
        empty=outcomes.count("empty"),
        null=outcomes.count("null"),
        num_thoughts=sum(bool(answer["thought"]) for answer in answers),
        mean_tokens=round(sum(tokens) / len(tokens), 1) if tokens else None,
    )


def _key(context: object, gen_kwargs: object) -> str:
    # lm-eval wraps a chat as JSON in a named tuple, which is a plain one among its samples.
    prompt = context[0] if isinstance(context, tuple | list) else context
    told = json.dumps([prompt, gen_kwargs], sort_keys=True, default=str, ensure_ascii=False)
    return hashlib.sha256(told.encode()).hexdigest()[:32]
