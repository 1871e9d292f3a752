"""Section: layouts that were simulated for the load of `qserve up`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from qserve.charts.figures import Value
from qserve.charts.spec import Point, Scatter
from qserve.report.blocks import Block, Column, Figure, Section, Table, Text
from qserve.report.facts import RunReport

__all__ = ["layouts", "layouts_chart"]

_COLUMNS = (
    Column("layout", "layout"),
    Column("cards", "cards", "count"),
    Column("max_num_seqs", "at once", "count"),
    Column("ttft_ms", "TTFT", "ms"),
    Column("tpot_ms", "TPOT", "ms"),
    Column("output_tokens_per_s", "tokens/s", "number"),
    Column("kept_share", "in time", "share"),
    Column("price_per_hour", "$ an hour", "number"),
    Column("chosen", "chosen"),
)


def layouts(report: RunReport) -> Section | None:
    """The picture and the figures; None where no load was named."""
    blocks: list[Block] = []
    for worker in report.run.workers:
        speed = worker.plan.get("speed") or {}
        if speed.get("alternatives"):
            blocks += _worker(worker.name, speed)
    return Section("layouts", "Layouts for the load", tuple(blocks)) if blocks else None


def layouts_chart(alternatives: Sequence[Mapping[str, Any]]) -> Scatter:
    """What each layout gives a user, and what it makes of a card: the rows under `speed.alternatives` of a plan."""
    points = tuple(
        Point(
            f"{row['layout']} ({row['cards']} card{'s' * (row['cards'] != 1)})",
            row["tokens_per_s_per_user"],
            row["tokens_per_s_per_card"],
            row["pareto"],
            row["chosen"],
            f"{row['tokens_per_s_per_user']:,.1f} tokens/s a user, {row['tokens_per_s_per_card']:,.0f} tokens/s a card",
        )
        for row in alternatives
    )
    keys = ("no layout is better in both", "another is better in both", "chosen for this load")
    return Scatter(points, "tokens/s of one user", "tokens/s of one card", "number", "number", keys)


def _worker(name: str, speed: dict[str, Any]) -> list[Block]:
    rows: tuple[tuple[Value, ...], ...] = tuple(
        tuple("yes" if value is True else "" if value is False else value for value in map(row.get, _keys()))
        for row in speed["alternatives"]
    )
    load = ", ".join(f"{key} {value}" for key, value in speed["load"].items() if key != "assumed")
    table = Table(f"layouts_{name}", f"{name}: layouts", _COLUMNS, rows, f"Planned for {load}.")
    shown = Figure(layouts_chart(speed["alternatives"]), table) if len(rows) > 1 else table
    return [shown, *(Text(note) for note in speed.get("notes", ()))]


def _keys() -> tuple[str, ...]:
    return tuple(column.key for column in _COLUMNS)
