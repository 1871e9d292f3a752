"""Texts to score, and the type of their answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from qserve.reward.evaluation.records import Content, Record

__all__ = ["Answered", "Rewards", "TextToScore", "texts_of", "together"]

Item = TypeVar("Item")

Answered = dict[str, Any]
"""`reward`, `num_tokens`, `truncated`, and where there are some `steps`, `attributes` and `judges` (what a server has
counted of their verdicts); or `error`, a sentence."""


@dataclass(frozen=True)
class TextToScore:
    """One text. Texts of one `group` are scored in one request: a pairwise judge compares the answers to one prompt.

    `reference` is what rules and judges compare with.
    """

    content: Content
    group: int
    reference: str | None = None


Rewards = Callable[[Sequence[TextToScore]], list[Answered]]


def texts_of(records: Sequence[Record]) -> list[TextToScore]:
    """The texts of all records, in order, each with the `reference` of its record, if any."""
    return [
        TextToScore(
            content, record.line, record.data["reference"] if isinstance(record.data.get("reference"), str) else None
        )
        for record in records
        for content in record.contents
    ]


def together(items: Sequence[Item], groups: Sequence[int], at_once: int) -> list[list[Item]]:
    """Batches of at least `at_once` items (the last may be smaller); no group is divided."""
    parts: list[list[Item]] = [[]]
    for index, item in enumerate(items):
        if len(parts[-1]) >= at_once and groups[index] != groups[index - 1]:
            parts.append([])
        parts[-1].append(item)
    return [part for part in parts if part]
