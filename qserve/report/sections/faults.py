"""Section: faults: failed requests, ended workers, lost records."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Mapping, Sequence

from qserve.charts.figures import duration
from qserve.report.blocks import Block, Column, Section, Table, Text
from qserve.report.facts import RunReport
from qserve.runs import StoredEvent

__all__ = ["fault_text", "faults"]

_ERRORS = (Column("worker", "worker"), Column("code", "error"), Column("requests", "requests", "count"))
_EVENTS = (
    Column("unix_s", "when", "time"),
    Column("worker", "worker"),
    Column("event", "what"),
    Column("details", "details", "prose"),
)
_MOST_EVENTS = 100


def faults(report: RunReport) -> Section | None:
    """None where nothing went wrong."""
    run = report.run
    blocks: list[Block] = []
    if run.state == "died":
        blocks.append(
            Text("The run ended without a last record: it was killed, or the machine went down.", is_warning=True)
        )
    if run.exit_status:
        blocks.append(Text(f"The command ended with exit status {run.exit_status}.", is_warning=True))
    if run.num_lost:
        blocks.append(
            Text(
                f"{run.num_lost:,} requests could not be recorded: the disk was full, or the store was locked.",
                is_warning=True,
            )
        )
    checks = [event for event in report.events if event.event == "sanity"]
    blocks += [
        Text(f"{one.worker}: {one.details['told']}", is_warning=True) for one in checks if one.details["is_noise"]
    ]
    events = _of_faults(report.events)
    if events:
        rows = tuple(
            (event.unix_s, event.worker, event.event, fault_text(event.details)) for event in events[-_MOST_EVENTS:]
        )
        left_out = len(events) - len(rows)
        how = f"{left_out:,} earlier ones are left out." if left_out else ""
        blocks.append(Table("events", "Failures and restarts of workers", _EVENTS, rows, how))
    errors = tuple(
        (found.worker or "refused before", code, count)
        for found in report.traffic.workers
        for code, count in sorted(found.summary.errors.items(), key=lambda pair: -pair[1])
    )
    if errors:
        blocks.append(
            Table("errors", "Requests that ended with an error", _ERRORS, errors, "By the error's code in the answer.")
        )
    return Section("faults", "Faults", tuple(blocks)) if blocks else None


def _of_faults(events: Sequence[StoredEvent]) -> list[StoredEvent]:
    """Faults, and when a worker that had gone down was ready again."""
    found: list[StoredEvent] = []
    down: set[str] = set()
    for event in events:
        if event.is_fault:
            down.add(event.worker)
            found.append(event)
        elif event.event == "ready" and event.worker in down:
            down.remove(event.worker)
            found.append(event)
    return found


def _ended(returncode: object) -> str:
    """As people know it: the kernel's negative numbers are signals."""
    if isinstance(returncode, int) and returncode < 0:
        with contextlib.suppress(ValueError):
            return f"killed by {signal.Signals(-returncode).name}"
    return f"exit status {returncode}"


def fault_text(details: Mapping[str, object]) -> str:
    """An event's details as a phrase."""
    parts = []
    for name, value in details.items():
        if name == "phases_s" and isinstance(value, dict):
            parts.append(f"after {duration(sum(value.values()))}")
        elif name == "pause_s":
            parts.append(f"tried again after {value} s")
        elif name == "returncode":
            parts.append(_ended(value))
        elif value is not None:
            parts.append(str(value) if name == "reason" else f"{name.replace('_', ' ')}: {value}")
    return " · ".join(parts)
