"""Terminal output of a stored report: headings and tables, without the long ones of the HTML page."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator, Sequence

from rich.cells import cell_len
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

_GAP = 4  # between two columns
_MOST_COLUMNS = 4


def to_terminal(report: RunReport) -> str:
    """Print to the width of the terminal, in colours; to a pipe each row is one line."""
    out, is_terminal = io.StringIO(), sys.stdout.isatty()
    console = Console(file=out, force_terminal=is_terminal, width=console_of().width, highlight=False)
    run = report.run
    console.print(RichText(f"{title_of(report)} · run {run.id} · {moment(run.started_unix_s)} · {run.state}", "bold"))
    for section in sections_of(report):
        console.print()
        console.print(RichText(section.title, "bold underline"))
        for block in section.blocks:
            for shown in _shown(block, console.width):
                console.print(shown, soft_wrap=isinstance(shown, RichText))
    console.print(f"\nthe whole page: qserve report {run.id} --format html --output report.html", markup=False)
    return out.getvalue()


def _shown(block: Block, width: int) -> Iterator[RenderableType]:
    match block:
        case Table(is_long=False) if block.columns:  # without rows it is the title of a chart
            yield RichText(f"\n{block.title}", "bold")
            yield _table(block, width)
            if block.how:
                yield RichText(block.how, "dim")
        case Figure():
            yield from _shown(block.table, width)
        case Text():
            yield RichText(block.text, "red" if block.is_warning else "")
        case Code():
            yield RichText(f"\n{block.title}", "bold")
            yield from (RichText(line) for line in block.lines)
        case Tiles():
            for tile in block.tiles:
                yield RichText(f"{tile.label}: {text_of(tile.value, tile.kind)} ({tile.remark})")


def _table(table: Table, width: int) -> RichTable:
    """One line per row, or transposed if words or numbers would be cut at this width."""
    rows = [[text_of(value, one.kind) for value, one in zip(row, table.columns, strict=True)] for row in table.rows]
    is_too_wide = _narrowest(table, rows) > width
    if is_too_wide and len(rows) <= _MOST_COLUMNS:
        return _turned(table, rows)
    shown = RichTable(box=None, pad_edge=False, padding=(0, 1 if is_too_wide else 2))
    for column in table.columns:
        is_number = column.kind in NUMERIC
        shown.add_column(column.title, justify="right" if is_number else "left", no_wrap=is_number)
    for row in rows:
        shown.add_row(*map(RichText, row))
    return shown


def _turned(table: Table, rows: Sequence[Sequence[str]]) -> RichTable:
    """Transposed: titles at the left, each row as a column named by its first cell."""
    shown = RichTable(box=None, pad_edge=False, padding=(0, 2))
    shown.add_column(table.columns[0].title)
    for row in rows:
        shown.add_column(RichText(row[0]))
    for index, column in enumerate(table.columns[1:], 1):
        shown.add_row(RichText(column.title), *(RichText(row[index]) for row in rows))
    return shown


def _narrowest(table: Table, rows: Sequence[Sequence[str]]) -> int:
    """The smallest width at which no number or word is cut, in terminal columns."""
    widths = []
    for index, column in enumerate(table.columns):
        words = [word for text in (column.title, *(row[index] for row in rows)) for word in text.split()]
        numbers = [row[index] for row in rows] if column.kind in NUMERIC else []
        widths.append(max((cell_len(text) for text in (*words, *numbers)), default=0))
    return sum(widths) + _GAP * (len(widths) - 1)
