"""A stored report on the terminal: headlines and tables; what is long is left to the page."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator

from rich.console import Console, RenderableType
from rich.table import Table as RichTable
from rich.text import Text as RichText

from qserve.cli.terminal import console_of
from qserve.report.blocks import Block, Code, Figure, Table, Text, Tiles
from qserve.report.facts import RunReport
from qserve.report.figures import NUMERIC, moment, text_of
from qserve.report.page import title_of
from qserve.report.sections import sections_of

__all__ = ["to_terminal"]


def to_terminal(report: RunReport) -> str:
    """As wide as the terminal, with its colours if there is one; a pipe gets each row in one line."""
    out, is_terminal = io.StringIO(), sys.stdout.isatty()
    console = Console(file=out, force_terminal=is_terminal, width=console_of().width, highlight=False)
    run = report.run
    console.print(RichText(f"{title_of(report)} · run {run.id} · {moment(run.started_unix_s)} · {run.state}", "bold"))
    for section in sections_of(report):
        console.print()
        console.print(RichText(section.title, "bold underline"))
        for block in section.blocks:
            for shown in _shown(block):
                console.print(shown, soft_wrap=isinstance(shown, RichText))
    console.print(f"\nthe whole page: qserve report {run.id} --format html --output report.html", markup=False)
    return out.getvalue()


def _shown(block: Block) -> Iterator[RenderableType]:
    match block:
        case Table(is_long=False) if block.columns:  # without any it is a chart's title
            yield RichText(f"\n{block.title}", "bold")
            yield _table(block)
            if block.how:
                yield RichText(block.how, "dim")
        case Figure():
            yield from _shown(block.table)
        case Text():
            yield RichText(block.text, "red" if block.is_warning else "")
        case Code():
            yield RichText(f"\n{block.title}", "bold")
            yield from (RichText(line) for line in block.lines)
        case Tiles():
            for tile in block.tiles:
                yield RichText(f"{tile.label}: {text_of(tile.value, tile.kind)} ({tile.remark})")


def _table(table: Table) -> RichTable:
    shown = RichTable(box=None, pad_edge=False, padding=(0, 2))
    for column in table.columns:
        shown.add_column(column.title, justify="right" if column.kind in NUMERIC else "left")
    for row in table.rows:
        cells = (text_of(value, column.kind) for value, column in zip(row, table.columns, strict=True))
        shown.add_row(*(RichText(cell) for cell in cells))
    return shown
