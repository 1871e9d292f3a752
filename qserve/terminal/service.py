"""Terminal output of a service's plan: its models, their speed, and the next step."""

from __future__ import annotations

from dataclasses import replace

import click
from rich.console import Console

from qserve.service.plan import ServicePlan
from qserve.terminal.plan import show_next_step, show_plan
from qserve.terminal.speed import show_speed

__all__ = ["show_service"]


def show_service(
    service: ServicePlan, *, explain: bool = False, monthly: bool = False, console: Console | None = None
) -> None:  # fmt: skip
    """Print it; with `explain` every term's formula, numbers and source. Two models say first how they share."""
    first, *others = service.models
    if service.where:
        click.secho(service.where, bold=True)
    show_plan(replace(first.whole, host=() if others else first.whole.host), explain, console)
    if first.whole.speed:
        show_speed(first.whole.speed, explain, console, monthly, takes_load=not others)
    for other in others:
        show_plan(other.whole, explain, console)  # what both share, once, at the end
    show_next_step(first.whole, console)
