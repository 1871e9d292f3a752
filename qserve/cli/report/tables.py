"""Tables of a report on a terminal: nothing is cut and no word is broken.

A table that is too wide is turned, or printed in parts; sentences that have no room in it are below it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.cells import cell_len
from rich.console import RenderableType
from rich.table import Table as RichTable
from rich.text import Text as RichText

from qserve.charts.figures import NUMERIC, text_of
from qserve.report.blocks import Table
from qserve.terminal.console import Hanging

__all__ = ["drawn_table"]

_GAP = 2  # between two columns
_MOST_TURNED = 4
_FEWEST_OF_PROSE = 40


def drawn_table(table: Table, width: int) -> Iterator[RenderableType]:
    """One line per row, what is said of a row below; or turned, or in parts, where it is too wide."""
    rows = [[text_of(value, one.kind) for value, one in zip(row, table.columns, strict=True)] for row in table.rows]
    cells = [[column.title, *(row[index] for row in rows)] for index, column in enumerate(table.columns)]
    kinds = [column.kind for column in table.columns]
    prose = [index for index, kind in enumerate(kinds) if kind == "prose"]
    others = [index for index in range(len(cells)) if index not in prose]
    room = width - sum(_natural(cells[index]) for index in others) - _GAP * len(others)
    if sum(min(_natural(cells[index]), _FEWEST_OF_PROSE) for index in prose) <= room:
        others, prose = list(range(len(cells))), []
    yield from _figures([cells[index] for index in others], [kinds[index] in NUMERIC for index in others], width)
    for index in prose:
        for row in rows:
            if row[index]:
                yield Hanging(row[index], f"  {row[0]}: ", "dim")


def _figures(columns: Sequence[Sequence[str]], numeric: Sequence[bool], width: int) -> Iterator[RenderableType]:
    """Of each column the title and its cells."""
    turned = list(zip(*columns, strict=True))
    if _fits(columns, numeric, width):
        yield _shaped(columns, numeric, width)
    elif len(turned) <= _MOST_TURNED + 1 and _fits(turned, [False] * len(turned), width):
        yield _shaped(turned, [False] * len(turned), width)
    else:
        for part in _parts(columns, numeric, width):
            yield _shaped([columns[index] for index in part], [numeric[index] for index in part], width)


def _parts(columns: Sequence[Sequence[str]], numeric: Sequence[bool], width: int) -> Iterator[list[int]]:
    """Columns that fit next to the first one, which each part repeats."""
    part = [0]
    for index in range(1, len(columns)):
        wider = [*part, index]
        if len(part) > 1 and not _fits([columns[one] for one in wider], [numeric[one] for one in wider], width):
            yield part
            wider = [0, index]
        part = wider
    yield part


def _shaped(columns: Sequence[Sequence[str]], numeric: Sequence[bool], width: int) -> RichTable:
    """Each column as wide as it would be, or as much of that as there is room for."""
    widths = [_least(cells, is_number) for cells, is_number in zip(columns, numeric, strict=True)]
    room = width - sum(widths) - _GAP * (len(widths) - 1)
    for index, cells in enumerate(columns):
        more = max(0, min(room, _natural(cells) - widths[index]))
        widths[index] += more
        room -= more
    shown = RichTable(box=None, pad_edge=False, padding=(0, _GAP, 0, 0))
    for cells, is_number, wide in zip(columns, numeric, widths, strict=True):
        shown.add_column(RichText(cells[0]), justify="right" if is_number else "left", width=wide)
    for row in zip(*(cells[1:] for cells in columns), strict=True):
        shown.add_row(*map(RichText, row))
    return shown


def _fits(columns: Sequence[Sequence[str]], numeric: Sequence[bool], width: int) -> bool:
    least = (_least(cells, is_number) for cells, is_number in zip(columns, numeric, strict=True))
    return sum(least) + _GAP * (len(columns) - 1) <= width


def _natural(cells: Sequence[str]) -> int:
    return max(map(cell_len, cells))


def _least(cells: Sequence[str], is_number: bool) -> int:
    """The smallest width at which no number is wrapped and no word is broken."""
    words = [word for text in (cells[:1] if is_number else cells) for word in text.split()]
    return max(map(cell_len, [*words, *(cells[1:] if is_number else ()), ""]))
