"""The report as JSON: the same sections, with values as they are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from qserve.report.blocks import Block, Code, Figure, Row, Section, Table, Text, Tiles
from qserve.report.facts import RunReport
from qserve.report.sections import sections_of
from qserve.version import __version__

__all__ = ["to_json"]


def to_json(report: RunReport) -> dict[str, Any]:
    """Plain JSON: each section's tables by their keys, rows as objects with the columns' keys.

    Bytes, milliseconds and seconds as their names say, shares of 1, times in seconds since 1970.
    """
    run = report.run.to_json()
    return {
        "object": "report",
        "qserve_version": __version__,
        "made_unix_s": round(report.made_unix_s, 3),
        "run": {
            name: run[name]
            for name in ("id", "state", "started_unix_s", "ended_unix_s", "command", "versions", "hardware", "url")
        },
        "sections": {section.key: _section(section) for section in sections_of(report)},
    }


def _section(section: Section) -> dict[str, Any]:
    document: dict[str, Any] = {"title": section.title}
    for key, value in (pair for block in section.blocks for pair in _block(block)):
        if isinstance(value, str):
            document.setdefault(key, []).append(value)
        else:
            document[key] = value
    return document


def _block(block: Block) -> Iterator[tuple[str, Any]]:
    match block:
        case Table():
            yield block.key, _table(block)
        case Figure() if block.table.columns:
            yield block.table.key, _table(block.table)
        case Row():
            for figure in block.figures:
                yield from _block(figure)
        case Text():
            yield "texts", block.text
        case Code():
            yield block.key, {"title": block.title, "lines": list(block.lines)}
        case Tiles():
            tiles = [
                {"label": one.label, "value": one.value, "kind": one.kind, "remark": one.remark} for one in block.tiles
            ]
            yield block.key, tiles


def _table(table: Table) -> dict[str, Any]:
    keys = [column.key for column in table.columns]
    rows = [dict(zip(keys, row, strict=True)) for row in table.rows]
    return {"title": table.title, "how": table.how, "rows": rows}
