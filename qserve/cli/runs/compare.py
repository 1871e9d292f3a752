"""`qserve runs compare`: two runs figure by figure, with the difference of numbers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from rich.table import Table

from qserve.cli.runs.show import duration_text
from qserve.planner.term import COLUMNS
from qserve.terminal.console import console_of
from qserve.units import format_bytes, format_ms

if TYPE_CHECKING:
    from qserve.runs import RunStore, StoredRun, StoredWorker

__all__ = ["Row", "compared", "show_compared"]


@dataclass(frozen=True)
class Row:
    """One figure of both runs; `unit` is `bytes`, `ms`, `s`, `` (a count) or `text`. None: not in that run."""

    worker: str
    name: str
    unit: str
    first: Any
    second: Any

    @property
    def change(self) -> str:
        """The difference in percent; empty if there are not two numbers."""
        if self.unit == "text" or self.first is None or self.second is None:
            return "" if self.first == self.second else "differs"
        if not self.first:
            return ""
        return f"{100 * (self.second / self.first - 1):+.1f} %" if self.first != self.second else "="

    def to_json(self) -> dict[str, Any]:
        """The fields."""
        return asdict(self)


def compared(store: RunStore, first: StoredRun, second: StoredRun) -> list[Row]:
    """Settings and results of both runs; workers are matched by role."""
    rows = [
        Row("", "run", "text", first.id, second.id),
        Row("", "command", "text", " ".join(first.command), " ".join(second.command)),
        Row("", "lasted", "s", round(first.duration_s), round(second.duration_s)),
    ]
    packages = sorted({*first.versions, *second.versions})
    versions = ((name, first.versions.get(name), second.versions.get(name)) for name in packages)
    rows += [Row("", name, "text", one, other) for name, one, other in versions if one != other]
    names = dict.fromkeys(worker.name for run in (first, second) for worker in run.workers)
    sides = [dict(_figures(store, run)) for run in (first, second)]
    for name in names:
        figures = dict.fromkeys(key for side in sides for key in side if key[0] == name)
        rows += [Row(*key, *(side.get(key) for side in sides)) for key in figures]
    return rows


def show_compared(rows: list[Row]) -> None:
    """Print the rows as a table, grouped by worker."""
    table = Table("", "first", "second", "change", box=None, pad_edge=False, padding=(0, 2), header_style="bold")
    table.columns[3].justify = "right"
    for column in table.columns:
        column.overflow = "fold"
    worker = ""
    for row in rows:
        if row.worker != worker:
            worker = row.worker
            table.add_row(f"[bold]{worker}[/bold]")
        table.add_row(row.name, _text(row, row.first), _text(row, row.second), row.change)
    console_of().print(table)


def _figures(store: RunStore, run: StoredRun) -> Iterator[tuple[tuple[str, str, str], Any]]:
    """((worker, name, unit), value)."""
    memory = store.memory(run)
    traffic = {one.worker: one.summary for one in store.traffic(run).workers}
    for worker in run.workers:
        for name, value in _plan(worker):
            yield (worker.name, name, "text"), value
        yield (worker.name, "start", "s"), round(sum(worker.start_phases_s.values()), 1)
        yield (worker.name, "restarts", ""), worker.num_restarts
        ready = next((one for one in memory if one.worker == worker.name), None)
        for column, name in COLUMNS.items():
            if ready is not None and f"{column}_bytes" in ready.terms:
                yield (worker.name, name, "bytes"), int(ready.terms[f"{column}_bytes"])
        if ready is not None and "kv_cache_tokens" in ready.terms:
            yield (worker.name, "KV tokens", ""), int(ready.terms["kv_cache_tokens"])
        summary = traffic.get(worker.name)
        if summary is not None:
            yield (worker.name, "requests", ""), summary.num_requests
            yield (worker.name, "errors", ""), summary.num_errors
            for name, values in summary.latency_ms.items():
                label = name if name == "queued" else name.upper()
                yield (worker.name, f"{label} p50", "ms"), values.p50
                yield (worker.name, f"{label} p99", "ms"), values.p99


def _plan(worker: StoredWorker) -> Iterator[tuple[str, str]]:
    plan = worker.plan
    workload = plan["workload"]
    yield "model", ", ".join(worker.models)
    yield "engine", f"{plan['engine']} {plan['engine_version']}"
    yield "quantization", plan["quant"]["scheme"]
    yield "max_model_len", str(workload["max_model_len"])
    yield "max_num_seqs", str(workload["max_num_seqs"])


def _text(row: Row, value: Any) -> str:
    if value is None:
        return "·"
    if row.unit == "bytes":
        return format_bytes(value)
    if row.unit == "s":
        return duration_text(value)
    if row.unit == "ms":
        return format_ms(value)
    return f"{value:,}" if isinstance(value, int) else str(value)
