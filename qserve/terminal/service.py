"""Terminal output of a service's plan: its models, their speed, and the next step."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import replace

from rich.console import Console
from rich.text import Text

from qserve.planner.plan import Plan
from qserve.terminal.console import console_of
from qserve.terminal.plan import show_next_step, show_plan, show_ways
from qserve.terminal.speed import show_speed

__all__ = ["service_text", "show_service"]


def show_service(
    plans: Sequence[Plan], where: str, *, explain: bool = False, monthly: bool = False, console: Console | None = None
) -> None:
    """Print the plans of a service's models; with `explain` every term's formula, numbers and source.

    The first has the speed and the next command; `where` says how two share the machine.
    """
    console = console or console_of()
    first, *others = plans
    if where:
        console.print(Text(where, style="bold"), soft_wrap=True)
    show_plan(replace(first, host=() if others else first.host), explain, console, with_ways=False)
    if first.speed:
        show_speed(first.speed, explain, console, monthly, takes_load=not others)
    show_ways(first, console)  # at the end, where the next step is looked for
    for other in others:
        show_plan(other, explain, console)  # what both share, once, at the end
    show_next_step(first, console)


def service_text(plans: Sequence[Plan], where: str, width: int = 80) -> str:
    """What `show_service` prints, without colours."""
    text = io.StringIO()
    show_service(plans, where, console=Console(file=text, width=width, highlight=False, color_system=None))
    return text.getvalue().rstrip("\n")
