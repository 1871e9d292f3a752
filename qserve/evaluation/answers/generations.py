"""The generated answers of one evaluation, by what was asked: thought, outcome, tokens. lm-eval keeps none of these.

They lie in a file beside lm-eval's own cache, a line an answer, so that an evaluation that goes on after an
interruption knows them too.
"""

from __future__ import annotations

import hashlib
import json
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
    """Answers by their question; `file` keeps them, None: this process only."""

    def __init__(self, file: Path | None) -> None:
        self._file = file
        self._answers: dict[str, Answer] = {}
        if file is not None and file.is_file():
            for line in file.read_text().splitlines():
                key, _, told = line.partition(" ")
                if told.endswith("}"):  # the last line may have been cut off
                    self._answers[key] = Answer(**json.loads(told))

    def add(self, context: object, gen_kwargs: object, answer: Answer) -> None:
        """Keep one answer."""
        key = _key(context, gen_kwargs)
        self._answers[key] = answer
        if self._file is not None:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            with self._file.open("a") as lines:
                lines.write(f"{key} {json.dumps(asdict(answer), ensure_ascii=False)}\n")

    def of(self, context: object, gen_kwargs: object) -> Answer | None:
        """The answer to this question; None where it was not asked for as text."""
        return self._answers.get(_key(context, gen_kwargs))


def with_generations(result: dict[str, Any], generations: Generations) -> dict[str, Any]:
    """lm-eval's result with `generations` in each sample: a list, as lm-eval's own `resps`, of plain dictionaries."""
    for samples in result["samples"].values():
        for sample in samples:
            several = [generations.of(*arguments) for arguments in sample["arguments"] if len(arguments) > 1]
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
