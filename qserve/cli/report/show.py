"""Terminal output of a stored report: a summary of one screen, or all tables but the long ones of the HTML page."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterable, Iterator

from rich.console import Console, RenderableType
from rich.text import Text as RichText

from qserve.charts.figures import text_of
from qserve.cli.report.tables import drawn_table
from qserve.report.blocks import Block, Code, Figure, Row, Table, Text, Tiles
from qserve.report.facts import RunReport
from qserve.report.page import title_of, when_of
from qserve.report.sections import sections_of
from qserve.report.summary import Labelled, summary_of
from qserve.terminal.console import Hanging, console_of

__all__ = ["printed", "to_summary", "to_terminal"]

_LABEL = 12


def to_summary(report: RunReport, *, to_file: bool = False) -> str:
    """One screen, to the width of the terminal; in colours if it goes there and not `to_file`."""
    console, out = _console(to_file)
    _head(console, report)
    before: object = None
    for part in summary_of(report):
        if not (isinstance(part, Labelled) and isinstance(before, Labelled)):
            console.print()
        before = part
        if isinstance(part, Labelled):
            for number, line in enumerate(part.lines):
                label = part.label if number == 0 else ""
                console.print(Hanging(line, f"{label:{_LABEL}}", "red" if part.is_warning else ""))
        elif isinstance(part, Table):
            for shown in drawn_table(part, console.width):
                console.print(shown)
        else:
            console.print(f"{'all tables':{_LABEL}}qserve report {report.run.id} --full", markup=False, soft_wrap=True)
            console.print(Hanging(f"{part.title}:", f"{'next':{_LABEL}}"))
            console.print(RichText("\n".join(f"  {line}" for line in part.lines)), soft_wrap=True)
    return _text(out)


def to_terminal(report: RunReport, *, to_file: bool = False) -> str:
    """All tables, to the width of the terminal, in colours if it goes there and not `to_file`; for a pipe each row is
    one line.
    """
    console, out = _console(to_file)
    _head(console, report)
    for section in sections_of(report):
        console.print()
        console.print(RichText(section.title, "bold underline"))
        for block in section.blocks:
            if isinstance(block, Code):
                _code(console, block)
            for shown in _shown(block, console.width):
                console.print(shown)
    return _text(out)


def printed(parts: Iterable[RenderableType]) -> str:
    """Each on lines of its own, to the width of the terminal."""
    console, out = _console()
    for part in parts:
        console.print(part)
    return _text(out)


def _console(to_file: bool = False) -> tuple[Console, io.StringIO]:
    out, is_terminal = io.StringIO(), not to_file and sys.stdout.isatty()
    return Console(file=out, force_terminal=is_terminal, width=console_of().width, highlight=False), out


def _text(out: io.StringIO) -> str:
    return "".join(f"{line.rstrip()}\n" for line in out.getvalue().splitlines())


def _head(console: Console, report: RunReport) -> None:
    console.print(RichText(title_of(report), "bold"))
    console.print(RichText(f"run {report.run.id} · {when_of(report)}"))


def _code(console: Console, code: Code) -> None:
    """Lines to be copied are never wrapped."""
    console.print(RichText(f"\n{code.title}", "bold"))
    console.print(RichText("\n".join(code.lines)), soft_wrap=True)


def _shown(block: Block, width: int) -> Iterator[RenderableType]:
    match block:
        case Table(is_long=False) if block.columns:  # without rows it is the title of a chart
            yield RichText(f"\n{block.title}", "bold")
            yield from drawn_table(block, width)
            if block.how:
                yield RichText(block.how, "dim")
        case Figure():
            yield from _shown(block.table, width)
        case Row():
            for figure in block.figures:
                yield from _shown(figure, width)
        case Text():
            yield RichText(block.text, "red" if block.is_warning else "")
        case Tiles():
            for tile in block.tiles:
                yield RichText(f"{tile.label}: {text_of(tile.value, tile.kind)} ({tile.remark})")
