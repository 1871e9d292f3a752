"""Rendering shared by serving and training plans: a panel with a bar of terms, explained terms, suggestions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from qserve.planner.plan import Suggestion, Term
from qserve.terminal.console import Hanging
from qserve.units import GIB, format_bytes

__all__ = ["Part", "bar_panel", "explained", "headline", "left_of", "next_step", "next_step_on", "suggestion_list"]

_BAR_WIDTH = 60
_OVER = "▒"


class Part(NamedTuple):
    """A part of a bar, and its entry in the legend."""

    name: str
    num_bytes: int
    colour: str


def headline(
    fits: bool, facts: str, notes: Iterable[str], why_not: str | None, is_usable: bool = True, may_fit: bool = False
) -> RenderableType:
    """The verdict with the model; below it notes on what is loaded, and why it does not fit."""
    verdict, style = (" fits ", "bold white on green") if fits else (" does not fit ", "bold white on red")
    if may_fit:
        verdict, style = " may fit ", "bold black on yellow"
    elif fits and not is_usable:
        verdict, style = " fits, too slow to chat ", "bold black on yellow"
    lines: list[RenderableType] = [Text.assemble((verdict, style), (f" {facts}", "bold"))]
    lines += [Hanging(note, "  ", "dim") for note in notes]
    if why_not:
        lines.append(Hanging(why_not, "  ", "yellow" if may_fit else "red"))
    return Group(*lines)


def left_of(free_bytes: int) -> str:
    """The free memory of a card, or how much is missing."""
    return f"{format_bytes(free_bytes)} left" if free_bytes >= 0 else f"{format_bytes(-free_bytes)} missing"


def bar_panel(
    title: str, parts: Sequence[Part], total_bytes: int, parts_a_row: int, below: RenderableType | None = None
) -> Panel:
    """A panel with the parts as one bar of a device of `total_bytes`, and a legend of those that are not empty."""
    content: list[RenderableType] = [_bar(parts, max(total_bytes, 1)), _legend(parts, parts_a_row)]
    if sum(part.num_bytes for part in parts) > total_bytes:
        content.append(Text(f"{_OVER} does not fit", style="red"))
    if below is not None:
        content.append(below)
    return Panel(Group(*content), title=title, title_align="left", width=_BAR_WIDTH + 18, border_style="dim")


def _bar(parts: Sequence[Part], total_bytes: int) -> Text:
    """Full cells up to the device's end, a line there, and hatched cells for what is beyond it."""
    whole_bytes = max(total_bytes, sum(part.num_bytes for part in parts))
    is_over = whole_bytes > total_bytes
    width = _BAR_WIDTH - is_over
    end = min(round(total_bytes * width / whole_bytes), width - is_over)
    bar, held = Text(), 0
    for part in parts:
        begin, held = round(held * width / whole_bytes), held + part.num_bytes
        until = round(held * width / whole_bytes)
        bar.append("█" * (min(until, end) - min(begin, end)), style=part.colour)
        if begin <= end < until and is_over:
            bar.append("│", style="red")
        bar.append(_OVER * (max(until, end) - max(begin, end)), style=part.colour)
    return bar.append("░" * max(0, _BAR_WIDTH - len(bar)), style="dim")


def _legend(parts: Sequence[Part], parts_a_row: int) -> Table:
    """The legend, `parts_a_row` entries per row so that no name is separated from its figure."""
    grid = Table.grid(padding=(0, 3))
    cells = [
        Text.assemble(("■ ", part.colour), f"{part.name} {format_bytes(part.num_bytes)}")
        for part in parts
        if part.num_bytes
    ]
    for start in range(0, len(cells), parts_a_row):
        grid.add_row(*cells[start : start + parts_a_row])
    return grid


def explained(term: Term) -> RenderableType:
    """A term with its band, formula and source."""
    band = f"  ({term.low_bytes / GIB:.2f} to {term.high_bytes / GIB:.2f} GiB)"
    return Group(
        Text.assemble((f"{term.name}: {format_bytes(term.num_bytes)}", "bold"), (band, "dim")),
        Hanging(term.formula, "  = "),
        Hanging(f"source: {term.source}", "  ", "dim"),
    )


def suggestion_list(heading: str, suggestions: Iterable[Suggestion]) -> RenderableType:
    """The suggestions: each change, its cost, and the command that makes it.

    To be printed with `soft_wrap=True`: a command that is cut into lines cannot be copied.
    """
    lines: list[RenderableType] = [Text(heading, style="bold")]
    for number, suggestion in enumerate(suggestions, 1):
        lines.append(Hanging(suggestion.title, f"{number}. ", "green" if suggestion.is_usable else "yellow"))
        lines.append(Hanging(suggestion.cost, "   "))
        lines.append(Text(f"   {suggestion.command}", style="cyan"))
    return Group(*lines)


def next_step(heading: str, command: str) -> RenderableType:
    """A command to be copied: print it with `soft_wrap=True`."""
    return Group(Text(heading, style="bold"), Text(f"  {command}", style="cyan"))


def next_step_on(machine: str, do: str, command: str) -> RenderableType:
    """What to `do` with what was planned ("Serve it"), on the cards that `machine` names; empty: here."""
    return next_step(f"{do} on a machine with {machine}:" if machine else f"{do}:", command)
