"""The output of `qserve doctor`: the machine, the engines, and which formats run on which."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from qserve.cli.terminal import console_of
from qserve.core.hardware import Hardware

if TYPE_CHECKING:
    from qserve.cli.doctor.checks import Check

__all__ = ["show_doctor"]

_MARKS = {"ok": ("✓", "green"), "warning": ("!", "yellow"), "missing": ("✗", "red")}
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
        console.print(_lines([check for check in checks if check.topic == topic]))
        for note in hardware.notes if topic == "machine" else ():
            console.print(f"  {note}", markup=False)
    _heading(console, "Checkpoints that run here, by the way they are stored")
    console.print(_runs(schemes))
    console.print()
    if serves:
        console.print(Text("Chat can be served here: qserve up --model demo", style="bold green"))
    else:
        console.print(Text("Chat can't be served here yet: what is marked ✗ above comes first", style="bold red"))


def _heading(console: Console, title: str) -> None:
    console.print()
    console.print(Text(title, style="bold"))


def _lines(checks: list[Check]) -> Table:
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(width=1)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    table.add_column(overflow="fold", style="dim")
    for check in checks:
        # A missing optional extra is not an error.
        mark, color = ("–", "dim") if check.topic == "extra" and check.state == "missing" else _MARKS[check.state]
        table.add_row(Text(mark, style=color), check.name, Text(check.found), Text(check.remedy))
    return table


def _runs(schemes: Mapping[str, Mapping[str, str | None]]) -> Table:
    engines = list(next(iter(schemes.values())))
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("scheme", no_wrap=True)
    for engine in engines:
        table.add_column(engine, overflow="fold")
    for scheme, reasons in schemes.items():
        cells = (reasons[engine] for engine in engines)
        table.add_row(
            scheme, *(Text("✓", "green") if reason is None else Text(f"✗ {reason}", "dim") for reason in cells)
        )
    return table
