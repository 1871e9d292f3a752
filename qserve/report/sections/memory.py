"""Section: planned and measured memory by device and term, and memory over time."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

from qserve.charts.figures import Value, moment
from qserve.charts.spec import TERM_COLOURS, Bar, Line, Lines, Segment, StackedBars
from qserve.planner.term import COLUMNS
from qserve.planner.term import Column as Held
from qserve.report.blocks import Block, Column, Figure, Section, Table, Text
from qserve.report.facts import RunReport
from qserve.runs import StoredWorker
from qserve.units import format_bytes

__all__ = ["memory", "token_error", "total_bytes", "total_error", "total_terms"]

_COLUMNS = (
    Column("term", "term"),
    Column("planned_bytes", "planned", "bytes"),
    Column("measured_bytes", "measured", "bytes"),
    Column("difference", "difference", "change"),
    Column("source", "source", "prose"),
)
_LIMITS = (
    Column("what", "limit"),
    Column("planned", "planned", "number"),
    Column("measured", "measured", "number"),
    Column("difference", "difference", "change"),
    Column("source", "source", "prose"),
)
_HIGH_WATER = "Measured activations are the peak of this run. The plan is for the largest batch that the limits allow."
_FEWEST_SAMPLES = 3
_MOST_SAMPLES = 120


def memory(report: RunReport) -> Section | None:
    """A figure for each worker, then memory over time."""
    blocks: list[Block] = []
    for worker in report.run.workers:
        blocks += _worker(report, worker)
    if not blocks:
        return None
    if any("activations_bytes" in sample.terms for sample in report.memory):
        blocks.append(Text(_HIGH_WATER))
    if (host := _host(report)) is not None:
        blocks.append(host)
    if (over_time := _over_time(report)) is not None:
        blocks.append(over_time)
    return Section("memory", "Memory: planned against measured", tuple(blocks))


def total_error(report: RunReport, worker: StoredWorker) -> float | None:
    """Measured over planned, less one, of the terms that have both; None where none has."""
    planned, found = total_bytes(report, worker)
    return found / planned - 1 if planned else None


def total_bytes(report: RunReport, worker: StoredWorker) -> tuple[int, float]:
    """Planned and measured, of the terms that have both."""
    both = [(planned, found) for _, planned, found in _terms(report, worker) if planned and found is not None]
    return sum(planned for planned, _ in both), sum(found for _, found in both)


def total_terms(report: RunReport, worker: StoredWorker) -> str:
    """What `total_error` is over: empty where that is all that was planned."""
    terms = _terms(report, worker)
    both = [COLUMNS[term] for term, planned, found in terms if planned and found is not None]
    return "" if len(both) == len([1 for _, planned, _ in terms if planned]) else ", ".join(both)


def token_error(report: RunReport, worker: StoredWorker) -> float | None:
    """The same of the tokens that the KV cache holds."""
    planned, found = worker.plan.get("kv_cache_tokens"), report.held(worker).get("kv_cache_tokens")
    return found / planned - 1 if planned and found else None


def _terms(report: RunReport, worker: StoredWorker) -> list[tuple[Held, int, float | None]]:
    """Term, planned, measured: those that either side has."""
    held = report.held(worker)
    rows: list[tuple[Held, int, float | None]] = []
    for term in COLUMNS:
        planned = sum(device.get(f"{term}_bytes", 0) for device in worker.plan.get("devices", ()))
        found = held.get(f"{term}_bytes")
        if planned or found:
            rows.append((term, planned, found))
    return rows


def _worker(report: RunReport, worker: StoredWorker) -> list[Block]:
    terms = _terms(report, worker)
    if not terms:
        return []
    sources = report.sources(worker)
    rows: list[tuple[Value, ...]] = [
        (COLUMNS[term], planned, found, _change(planned, found), sources.get(f"{term}_bytes", ""))
        for term, planned, found in terms
    ]
    both = [(planned, found) for _, planned, found in terms if found is not None]
    if len(both) > 1:
        planned_sum, found_sum = sum(planned for planned, _ in both), sum(found for _, found in both)
        rows.append(("all measured", planned_sum, found_sum, _change(planned_sum, found_sum), ""))
    title = f"{worker.name}: {', '.join(worker.models)}"
    table = Table(f"memory_{worker.name}", title, _COLUMNS, tuple(rows), _how(report, worker))
    return [Figure(_bars(report, worker, terms), table), *_limits(report, worker)]


def _change(planned: float, found: float | None) -> float | None:
    return found / planned - 1 if planned and found is not None else None


def _how(report: RunReport, worker: StoredWorker) -> str:
    sample = report.measured(worker)
    if sample is None:
        return "Planned only: the worker ended before it was measured."
    when = {"ready": "when it was ready", "serving": "while it served", "end": "before it ended"}
    return f"Measured {when.get(sample.moment, sample.moment)}, {moment(sample.unix_s)}."


def _bars(report: RunReport, worker: StoredWorker, terms: list[tuple[Held, int, float | None]]) -> StackedBars:
    devices = worker.plan.get("devices", ())
    bars = [_planned_bar(device, index, len(devices)) for index, device in enumerate(devices)]
    found = [(term, measured) for term, _, measured in terms if measured is not None]
    if found:
        where = " on all devices" if len(devices) > 1 else ""
        bar = _bar(f"measured{where}", found)
        is_whole = len(found) == len(terms)
        bars.append(bar if is_whole else replace(bar, remark=f"{bar.remark}, the rest not measured"))
    cards = {str(card.get("name")) for card in report.run.hardware.get("devices", ())}
    if len(devices) == 1 and devices[0]["name"] in cards:
        return StackedBars(tuple(bars), float(devices[0]["total_bytes"]))
    return StackedBars(tuple(bars), max(sum(segment.value for segment in bar.segments) for bar in bars))


def _planned_bar(device: dict[str, Any], index: int, num_devices: int) -> Bar:
    where = f", {device['name']} ({index})" if num_devices > 1 else ""
    return _bar(f"planned{where}", [(term, device.get(f"{term}_bytes", 0)) for term in COLUMNS])


def _bar(label: str, values: list[tuple[Held, float]]) -> Bar:
    segments = tuple(Segment(COLUMNS[term], value, format_bytes(value), TERM_COLOURS[term]) for term, value in values)
    return Bar(label, segments, format_bytes(sum(value for _, value in values)))


def _limits(report: RunReport, worker: StoredWorker) -> list[Block]:
    sources, found = report.sources(worker), report.held(worker).get("kv_cache_tokens")
    planned = worker.plan.get("kv_cache_tokens")
    if not planned or not found:
        return []
    row: tuple[Value, ...] = (
        "KV cache tokens",
        planned,
        int(found),
        _change(planned, found),
        sources.get("kv_cache_tokens", ""),
    )
    return [Table(f"limits_{worker.name}", f"{worker.name}: capacity", _LIMITS, (row,))]


def _host(report: RunReport) -> Table | None:
    """The processes without a model, as the run's plans counted on them; None of a run that knew of none."""
    rows: list[tuple[Value, ...]] = []
    for process in report.run.hardware.get("host", ()):
        held = next(
            (
                one.terms["resident_bytes"]
                for one in reversed(report.memory)
                if one.worker == process["name"] and "resident_bytes" in one.terms
            ),
            None,
        )
        planned = process["num_bytes"]
        rows.append(
            (process["name"], planned, held, _change(planned, held), "resident memory (RSS)" if held else "not started")
        )
    how = "Processes of the service that hold no model; the newest measurement of each."
    return Table("memory_host", "Other processes", _COLUMNS, tuple(rows), how) if rows else None


def _over_time(report: RunReport) -> Figure | None:
    """Resident memory of each worker."""
    by_worker = {
        worker.name: [one for one in report.memory if one.worker == worker.name and "resident_bytes" in one.terms]
        for worker in report.run.workers
    }
    times = sorted({sample.unix_s for samples in by_worker.values() for sample in samples})
    times = times[:: -(-len(times) // _MOST_SAMPLES) or 1]
    if len(times) < _FEWEST_SAMPLES:
        return None
    held = {
        name: {sample.unix_s: sample.terms["resident_bytes"] for sample in samples}
        for name, samples in by_worker.items()
        if samples
    }
    colours: tuple[Any, ...] = ("1", "2", "4", "5")
    lines = tuple(
        Line(name, colours[index % len(colours)], tuple(values.get(at) for at in times))
        for index, (name, values) in enumerate(held.items())
    )
    step_s = max(after - before for before, after in itertools.pairwise(times))
    columns = (Column("unix_s", "time", "time"), *(Column(name, name, "bytes") for name in held))
    rows = tuple((at, *(values.get(at) for values in held.values())) for at in times)
    table = Table(
        "memory_over_time",
        "Resident memory over time",
        columns,
        rows,
        "Each worker's processes, by psutil.",
        is_long=True,
    )
    return Figure(Lines(tuple(times), lines, "bytes", step_s), table)
