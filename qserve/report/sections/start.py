"""Section: start-up by phase."""

from __future__ import annotations

from typing import Any

from qserve.charts.figures import duration
from qserve.charts.spec import Bar, Segment, StackedBars
from qserve.report.blocks import Column, Figure, Section, Table, Text
from qserve.report.facts import RunReport

__all__ = ["start"]

_COLUMNS = (
    Column("worker", "worker"),
    Column("phase", "phase"),
    Column("seconds", "time", "s"),
    Column("share", "share", "share"),
)
_COLOURS: tuple[Any, ...] = ("5", "1", "2", "3", "4", "6", "7", "8")
_SHORTEST_S = 0.05


def start(report: RunReport) -> Section | None:
    """A bar for each worker, phases in their order."""
    started = [worker for worker in report.run.workers if worker.start_phases_s]
    if not started:
        return None
    names = list(dict.fromkeys(name for worker in started for name in worker.start_phases_s))
    colours = {name: _COLOURS[index % len(_COLOURS)] for index, name in enumerate(names)}
    bars = []
    rows: list[tuple[str, str, float, float]] = []
    for worker in started:
        whole = sum(worker.start_phases_s.values())
        segments = tuple(
            Segment(name, seconds, duration(seconds), colours[name])
            for name, seconds in worker.start_phases_s.items()
            if seconds >= _SHORTEST_S
        )
        bars.append(Bar(worker.name, segments, duration(whole)))
        rows += [(worker.name, name, s, s / max(whole, 1e-9)) for name, s in worker.start_phases_s.items()]
    longest = max(sum(worker.start_phases_s.values()) for worker in started)
    how = "By the supervisor's clock; the first start of each worker."
    table = Table("start", "From the command to the first answer", _COLUMNS, tuple(rows), how)
    results = [f"{event.worker}: {event.details['told']}." for event in report.events if event.event == "sanity"]
    checks = tuple(Text(text) for text in dict.fromkeys(results))
    return Section("start", "Start", (Figure(StackedBars(tuple(bars), longest), table), *checks))
