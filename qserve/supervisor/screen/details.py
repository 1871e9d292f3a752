"""The further rows of `qserve up --verbose`: each term of memory, the phases of the start, the self-test's figures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from qserve.planner.term import COLUMNS
from qserve.supervisor.screen.console import Row
from qserve.supervisor.screen.worker import ReadyWorker
from qserve.units import format_bytes, format_seconds

__all__ = ["TERMS", "detail_rows", "process_rows"]

TERMS = {column: name for column, name in COLUMNS.items() if column != "runtime"}
"""What a worker tells that it measured of its model; the runtime is part of the line on the whole process."""
_WIDTH = max(map(len, TERMS.values()))
# Shorter phases are left out.
_LEAST_S = 0.1


def detail_rows(worker: ReadyWorker) -> list[Row]:
    """All that is known of one worker."""
    plan = worker.plan
    rows = []
    if worker.has_model:
        engine = f"{plan.engine} {plan.engine_version}".strip()
        rows.append((worker.name or worker.role, f"{plan.model.architecture} · {plan.dtype} · {engine}"))
        rows += [("", line) for line in _memory(worker)]
        rows += [("", f"safety margin: {reason}") for reason in _margins(worker)]
    phases = " · ".join(
        f"{name} {format_seconds(seconds)}" for name, seconds in worker.phases_s.items() if seconds >= _LEAST_S
    )
    if phases:
        rows.append(("" if worker.has_model else worker.name or worker.role, f"start: {phases}"))
    if worker.sanity is not None and worker.sanity.best is not None:
        rows.append(("", f"self-test: {worker.sanity.figures}"))
    return rows


def process_rows(processes: Sequence[Mapping[str, Any]]) -> list[Row]:
    """A row for the processes without a model: their memory now, or the planned one where they do not run."""
    texts = (
        f"{one['process']} {format_bytes(one['resident_bytes'])} (planned {format_bytes(one['planned_bytes'])})"
        if one["resident_bytes"]
        else f"{one['process']} not started (planned {format_bytes(one['planned_bytes'])})"
        for one in processes
    )
    text = " · ".join(texts)
    return [("others", text)] if text else []


def _memory(worker: ReadyWorker) -> Iterator[str]:
    """A line for each term that was planned or measured."""
    terms = []
    for name, title in TERMS.items():
        measured = worker.memory.get(f"{name}_bytes")
        planned = sum(getattr(device, f"{name}_bytes") for device in worker.plan.devices)
        if measured or planned:
            terms.append((title, format_bytes(measured) if measured else "–", format_bytes(planned)))
    if terms:
        yield f"{'memory':<{_WIDTH}} {'measured':>10} {'planned':>10}"
        yield from (f"{title:<{_WIDTH}} {measured:>10} {planned:>10}" for title, measured, planned in terms)
    if held := worker.memory.get("resident_bytes"):
        yield f"{'process':<{_WIDTH}} {format_bytes(held):>10}  (resident, all of it)"


def _margins(worker: ReadyWorker) -> list[str]:
    kept = [term for device in worker.plan.devices for term in device.terms if term.name == "held back"]
    return list(dict.fromkeys(term.formula.partition(":")[0] for term in kept if term.num_bytes))
