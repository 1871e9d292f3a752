"""Elements of a report, for all formats: sections of tables, figures, texts and commands.

Values stay values (bytes, milliseconds, shares); each column says of what kind, and `charts/figures.py`
makes text of them.
"""

from __future__ import annotations

from dataclasses import dataclass

from qserve.charts.figures import Kind, Value
from qserve.charts.spec import Chart

__all__ = ["Block", "Code", "Column", "Figure", "Row", "Section", "Table", "Text", "Tile", "Tiles"]

_MANY_COLUMNS = 8
_FEW_ROWS = 6
_LONG_PROSE = 100


@dataclass(frozen=True)
class Column:
    """`key` names it in JSON, `title` for people."""

    key: str
    title: str
    kind: Kind = "text"


@dataclass(frozen=True)
class Table:
    """Rows of values, one for each column.

    Attributes:
        how: how and when the figures were obtained.
        is_long: shown on demand where a chart tells the same.
    """

    key: str
    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Value, ...], ...]
    how: str = ""
    is_long: bool = False

    @property
    def is_turned(self) -> bool:
        """Whether people read it as a line for each column: few rows of many columns fit no screen."""
        return len(self.columns) >= _MANY_COLUMNS and len(self.rows) <= _FEW_ROWS

    @property
    def has_long_prose(self) -> bool:
        """Whether something that is said of a row would fill lines next to its figures."""
        prose = [index for index, column in enumerate(self.columns) if column.kind == "prose"]
        return any(len(str(row[index] or "")) > _LONG_PROSE for row in self.rows for index in prose)


@dataclass(frozen=True)
class Figure:
    """A chart, and the table that tells the same."""

    chart: Chart
    table: Table


@dataclass(frozen=True)
class Row:
    """Small figures side by side, where there is room."""

    figures: tuple[Figure, ...]


@dataclass(frozen=True)
class Text:
    """Sentences; `is_warning`: something that the reader should not miss."""

    text: str
    is_warning: bool = False


@dataclass(frozen=True)
class Code:
    """Lines to be copied."""

    key: str
    title: str
    lines: tuple[str, ...]


@dataclass(frozen=True)
class Tile:
    """One figure large, with what it is and a remark."""

    label: str
    value: Value
    kind: Kind
    remark: str = ""


@dataclass(frozen=True)
class Tiles:
    """The figures that a reader looks for first."""

    key: str
    tiles: tuple[Tile, ...]


Block = Table | Figure | Row | Text | Code | Tiles


@dataclass(frozen=True)
class Section:
    """A part of the page with its own place in the list of contents."""

    key: str
    title: str
    blocks: tuple[Block, ...]
