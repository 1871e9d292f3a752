"""The report as Markdown: the same sections and tables, for a pull request or a wiki."""

from __future__ import annotations

import re
from collections.abc import Iterable

from qserve.charts.figures import NUMERIC, Value, moment, text_of
from qserve.report.blocks import Block, Code, Column, Figure, Row, Section, Table, Text, Tiles
from qserve.report.facts import RunReport
from qserve.report.page import title_of
from qserve.report.sections import sections_of

__all__ = ["to_markdown"]

_SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|~])")


def to_markdown(report: RunReport) -> str:
    """GitHub's Markdown. Names are escaped: none of them becomes markup."""
    run = report.run
    head = f"# {_escaped(title_of(report))}\n\nRun `{run.id}`, {moment(run.started_unix_s)}"
    parts = [head, *(_section(section) for section in sections_of(report))]
    return "\n\n".join(parts) + f"\n\nMade {moment(report.made_unix_s)} from the run's record.\n"


def _section(section: Section) -> str:
    blocks = (_block(block) for block in section.blocks)
    return "\n\n".join([f"## {section.title}", *(block for block in blocks if block)])


def _block(block: Block) -> str:
    match block:
        case Table():
            return _table(block)
        case Figure():
            return _table(block.table) if block.table.columns else ""
        case Row():
            return "\n\n".join(_table(figure.table) for figure in block.figures if figure.table.columns)
        case Text():
            return f"> **{_escaped(block.text)}**" if block.is_warning else _escaped(block.text)
        case Code():
            return f"**{_escaped(block.title)}**\n\n" + "\n".join(f"    {line}" for line in block.lines)
        case Tiles():
            tiles = ((tile.label, text_of(tile.value, tile.kind), tile.remark) for tile in block.tiles)
            return "\n".join(f"- {_escaped(label)}: **{text}**, {_escaped(remark)}" for label, text, remark in tiles)


def _table(table: Table) -> str:
    lines = [
        f"**{_escaped(table.title)}**",
        "",
        _row(column.title for column in table.columns),
        "|" + "|".join("--:" if column.kind in NUMERIC else "---" for column in table.columns) + "|",
        *(_row(_cell(value, column) for value, column in zip(row, table.columns, strict=True)) for row in table.rows),
    ]
    return "\n".join([*lines, *(["", f"_{_escaped(table.how)}_"] if table.how else [])])


def _row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _cell(value: Value, column: Column) -> str:
    return _escaped(text_of(value, column.kind))


def _escaped(text: str) -> str:
    return _SPECIAL.sub(r"\\\1", " ".join(text.split()))
