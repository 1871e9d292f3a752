"""The output of `qserve doctor`: the machine, the engines, and which formats run on which."""

from __future__ import annotations

import textwrap
from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from qserve.core.hardware import Hardware
from qserve.terminal.console import console_of

if TYPE_CHECKING:
    from qserve.cli.doctor.checks import Check

__all__ = ["show_doctor"]

_MARKS = {"ok": ("✓", "green"), "warning": ("!", "yellow"), "missing": ("✗", "red")}
_RUNS = "✓"
_INDENT = 5
"""Columns of the mark and of what separates it and the name from the rest."""
_TITLES = {"machine": "This machine", "engine": "Engines", "extra": "Extras"}


def show_doctor(
    checks: list[Check],
    schemes: Mapping[str, Mapping[str, str | None]],
    hardware: Hardware,
    serves: bool,
    console: Console | None = None,
) -> None:
    """Print the whole report and its verdict."""
    console = console or console_of()
    for topic, title in _TITLES.items():
        _heading(console, title)
        for line in _lines([check for check in checks if check.topic == topic], console.width):
            console.print(line, soft_wrap=True)
        for note in hardware.notes if topic == "machine" else ():
            console.print(f"  {note}", markup=False)
    _heading(console, "Formats of checkpoints that run here")
    missing = {check.name for check in checks if check.topic == "engine" and check.state == "missing"}
    console.print(_runs(schemes, missing))
    console.print()
    if serves:
        console.print(Text("Chat can be served here: qserve up --model demo", style="bold green"))
    else:
        console.print(Text("Chat can't be served here yet: fix what is marked ✗ above", style="bold red"))


def _heading(console: Console, title: str) -> None:
    console.print()
    console.print(Text(title, style="bold"))


def _lines(checks: list[Check], width: int) -> Iterator[Text]:
    """A line for each, and one more for what to do; none is cut within a word."""
    names = max((len(check.name) for check in checks), default=0)
    room = max(width - names - _INDENT, 20)
    for check in checks:
        # A missing optional extra is not an error.
        mark, color = ("–", "dim") if check.topic == "extra" and check.state == "missing" else _MARKS[check.state]
        is_ok = check.state == "ok"
        found = " · ".join(filter(None, (check.found, check.remedy if is_ok else "")))
        todo = _wrapped(f"→ {check.remedy}", room) if check.remedy and not is_ok else []
        rows = [(line, "") for line in _wrapped(found, room)] + [(line, "dim") for line in todo]
        for number, (line, style) in enumerate(rows):
            head = Text.assemble((mark, color), f"  {check.name:<{names}}  ") if not number else " " * (names + _INDENT)
            yield Text.assemble(head, (line, style))


def _wrapped(text: str, room: int) -> list[str]:
    return textwrap.wrap(text, room, break_long_words=False, break_on_hyphens=False) or [""]


def _runs(schemes: Mapping[str, Mapping[str, str | None]], missing: Collection[str]) -> Table:
    """A row for formats that run on the same engines. `missing`: engines that are not installed."""
    engines = list(next(iter(schemes.values())))
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("format")
    for engine in engines:
        table.add_column(engine)
    alike: dict[tuple[str, ...], list[str]] = {}
    for scheme, reasons in schemes.items():
        cells = (_cell(reasons[engine], engine in missing) for engine in engines)
        alike.setdefault(tuple(cells), []).append(scheme)
    for row, names in alike.items():
        table.add_row(", ".join(names), *(Text(cell, "green" if cell == _RUNS else "dim") for cell in row))
    return table


def _cell(reason: str | None, is_missing: bool) -> str:
    return _RUNS if reason is None and not is_missing else f"✗ {'not installed' if is_missing else reason}"
