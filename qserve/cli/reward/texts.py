"""Texts to score, and the type of their answers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from qserve.reward.evaluation.records import Content, Record, read_records
from qserve.reward.items import Score, ScoreItem, firsts_of
from qserve.rows.fields import told_unread

if TYPE_CHECKING:
    from qserve.model.failures import SequenceFailed
    from qserve.reward.scoring.scorer import RewardScorer

__all__ = ["Answered", "Parts", "Rewards", "TextToScore", "records_in", "scored", "texts_of", "together"]

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


Parts = Generator[list[Answered], None, None]
"""Answers in the order of their texts, part by part as they are scored; close it where the rest is not wanted."""
Rewards = Callable[[Sequence[TextToScore]], Parts]
"""No group of the texts is divided."""


def records_in(file: Path, *, keep_broken: bool = False) -> list[Record]:
    """The file's records; the fields that nothing reads are named on standard error. Raises as `read_records`."""
    unread: Counter[str] = Counter()
    records = read_records(file, unread, keep_broken=keep_broken)
    if (note := told_unread(unread)) is not None:
        click.echo(f"note: {note}", err=True)
    return records


def scored(scorer: RewardScorer, items: Sequence[ScoreItem]) -> list[Score | SequenceFailed]:
    """What became of each item. Equal items get the first one's reward, as in a request (`firsts_of`)."""
    outcomes = scorer.score_now(items)
    return [outcomes[place] for place in firsts_of(items, 0, {})]


def texts_of(records: Sequence[Record]) -> list[TextToScore]:
    """The texts of all records, in order, each with the `reference` of its record, if any."""
    return [TextToScore(content, record.line, record.reference) for record in records for content in record.contents]


def together(items: Sequence[Item], groups: Sequence[int], at_once: int) -> list[list[Item]]:
    """Batches of at least `at_once` items (the last may be smaller); no group is divided."""
    parts: list[list[Item]] = [[]]
    for index, item in enumerate(items):
        if len(parts[-1]) >= at_once and groups[index] != groups[index - 1]:
            parts.append([])
        parts[-1].append(item)
    return [part for part in parts if part]
