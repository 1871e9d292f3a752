"""Models that take turns, as `qserve plan` prints them: what each takes, and which fit together."""

from __future__ import annotations

from collections.abc import Iterator

from rich.table import Table

from qserve.planner.residency.footprint import RAM, Fit, most_together, verdict_on
from qserve.service.residents import STANDBY_BYTES, ResidentPlan, ResidentsPlan
from qserve.terminal.console import Hanging, console_of
from qserve.units import format_bytes, format_seconds

__all__ = ["show_residents"]

_MOST_SETS = 6


def show_residents(plan: ResidentsPlan, path: str) -> None:
    """Prints the models, the sets that fit together, and the next step."""
    console = console_of()
    table = Table(box=None, pad_edge=False)
    table.add_column("model", overflow="fold")
    table.add_column("weights", no_wrap=True)
    table.add_column("on", no_wrap=True)
    for name in ("in memory", "to start", "load"):
        table.add_column(name, justify="right", no_wrap=True)
    for one in plan.models:
        table.add_row(*_row(one))
    console.print(table)
    for name, size in plan.budget.pools.items():
        beside = (
            f", beside {format_bytes(STANDBY_BYTES)} of a process that stands by for the next" if plan.standby else ""
        )
        console.print(f"{name}: {format_bytes(size, 1)} for models{beside if name == RAM else ''}")
    for line in _sets(plan):
        console.print(Hanging(line))
    if plan.fits:
        console.print(f"Serve them:\n  qserve up --config {path}")


def _row(one: ResidentPlan) -> tuple[str, ...]:
    starting = sum(one.footprint.starting.values())
    load_s = one.footprint.load_s
    pinned = " · pinned" if one.keeping.is_pinned else ""
    return (
        f"{one.group}{pinned}",
        one.plan.quant.scheme if one.service.fits else "does not fit",
        ", ".join(one.footprint.rest),
        format_bytes(one.footprint.num_bytes, 1),
        f"+ {format_bytes(starting, 1)}" if starting else "",
        "" if load_s is None else format_seconds(load_s),
    )


def _sets(plan: ResidentsPlan) -> Iterator[str]:
    models = plan.footprints
    sets = list(most_together(models, plan.budget))
    for some in sets[:_MOST_SETS]:
        names = " + ".join(one.name for one in some)
        yield f"together: {names}" if len(some) > 1 else f"alone: {names}"
    if len(sets) > _MOST_SETS:
        yield f"and {len(sets) - _MOST_SETS} further sets"
    for at, one in enumerate(models):
        for other in models[at + 1 :]:
            if verdict_on([one, other], plan.budget) is Fit.AT_REST:
                short = format_bytes(plan.budget.short_together([one, other]), 1)
                yield (
                    f"{one.name} + {other.name} fit at rest and would not survive a cold start: {short} are missing "
                    "while one of them starts, so they take turns"
                )
