"""Section: quality of a reward model: scores against plain transformers, accuracy on preferences."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from qserve.charts.figures import Value, day_and_time, text_of
from qserve.charts.spec import Bar, Segment, StackedBars
from qserve.report.blocks import Block, Column, Figure, Section, Table
from qserve.report.facts import RunReport
from qserve.runs import StoredDocument

__all__ = ["reward_quality"]

_CHECKED = (
    Column("quantization", "quantization"),
    Column("num_texts", "texts", "count"),
    Column("largest_difference", "largest difference", "number"),
    Column("mean_difference", "mean", "number"),
    Column("rank_correlation", "rank correlation", "number"),
    Column("num_flipped", "pairs in another order", "count"),
    Column("num_pairs", "of", "count"),
)
_PARTS = (
    Column("name", "part"),
    Column("kind", "kind"),
    Column("weight", "weight", "number"),
    Column("num_texts", "texts", "count"),
    Column("num_without", "no value", "count"),
    Column("mean", "mean", "number"),
    Column("num_right", "preferences right", "count"),
    Column("num_preferences", "of", "count"),
    Column("faults", "what is wrong", "prose"),
)
_RIGHT = (
    Column("subset", "subset"),
    Column("num_right", "right", "count"),
    Column("num_asked", "asked", "count"),
    Column("accuracy", "accuracy", "share"),
    Column("low", "at least", "share"),
    Column("high", "at most", "share"),
    Column("mean_margin", "mean margin", "number"),
)

_INTERVALS = "At least and at most: Wilson's 95 % interval."


def reward_quality(report: RunReport) -> Section | None:
    """What `qserve reward check` and `qserve eval-reward` kept of this run; None where nobody asked."""
    blocks: list[Block] = []
    for one in report.evals:
        if one.document.get("kind") == "reward check":
            blocks += [_checked(one)] if one.document.get("quantizations") else []
            blocks += [_parts(one)] if one.document.get("parts") else []
        elif one.document.get("kind") == "reward preferences":
            blocks.append(_right(one))
            blocks += _attributes(one)
    return Section("reward_quality", "Reward accuracy", tuple(blocks)) if blocks else None


def _checked(one: StoredDocument) -> Table:
    rows = tuple(
        (name, *(found.get(column.key) for column in _CHECKED[1:]))
        for name, found in one.document.get("quantizations", {}).items()
    )
    how = "Against plain transformers in float32, one text at a time."
    return Table(
        f"reward_check_{one.number}", f"Difference from plain transformers: {_about(one)}", _CHECKED, rows, how
    )


def _parts(one: StoredDocument) -> Table:
    rows = tuple(
        (*(part.get(column.key) for column in _PARTS[:-1]), "; ".join(part.get("faults", ())) or "nothing")
        for part in one.document["parts"]
    )
    return Table(f"reward_parts_{one.number}", f"Parts of the reward: {_about(one)}", _PARTS, rows)


def _right(one: StoredDocument) -> Table:
    document = one.document
    results = [*document.get("subsets", ()), *document.get("levels", ()), document.get("overall", {})]
    rows: tuple[tuple[Value, ...], ...] = tuple(_accuracy(row) for row in results)
    return Table(f"reward_preferences_{one.number}", f"Preferences: {_about(one)}", _RIGHT, rows, _INTERVALS)


def _attributes(one: StoredDocument) -> list[Block]:
    """A bar and a row for each attribute; none where the model has none."""
    rows: tuple[tuple[Value, ...], ...] = tuple(_accuracy(row) for row in one.document.get("attributes", ()))
    if not rows:
        return []
    columns = (replace(_RIGHT[0], title="attribute"), *_RIGHT[1:])
    how = f"Each attribute taken as the reward. {_INTERVALS}"
    table = Table(f"reward_attributes_{one.number}", f"Preferences by attribute: {_about(one)}", columns, rows, how)
    bars = tuple(_bar(str(row[0]), float(row[3] or 0)) for row in rows)
    return [Figure(StackedBars(bars, 1.0), table)]


def _bar(name: str, share: float) -> Bar:
    return Bar(name, (Segment("right", share, text_of(share, "share"), "1"),), text_of(share, "share"))


def _accuracy(row: Mapping[str, Any]) -> tuple[Value, ...]:
    return (row.get("name"), *(row.get(column.key) for column in _RIGHT[1:]))


def _about(one: StoredDocument) -> str:
    return f"{one.document.get('file', 'a file')}, {day_and_time(one.unix_s)}"
