"""`qserve report --url`: planned and measured figures of a running service."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from qserve.cli.terminal import console_of
from qserve.errors import UsageError
from qserve.report.sections.latency import others_of
from qserve.units import format_bytes

__all__ = ["show_live"]

_TIMEOUT_S = 30
_WORTH_TELLING_S = 0.1
_TERMS = {
    "weights": "weights",
    "kv_cache": "KV cache",
    "activations": "activations",
    "cuda_graphs": "CUDA graphs",
    "runtime": "runtime",
}


def show_live(url: str, api_key: str | None, *, as_json: bool) -> None:
    """Print GET /v1/qserve/report of the service at `url`, as tables or JSON. Raises UsageError if none answers."""
    document = _fetched(url.rstrip("/"), api_key)
    if as_json:
        click.echo(json.dumps(document, indent=2, ensure_ascii=False))
        return
    console = console_of()
    for worker in document["data"]:
        _show(console, worker)
    _show_host(console, document.get("host") or [])


def _fetched(url: str, api_key: str | None) -> Any:
    """GET /v1/qserve/report. Raises UsageError with the answer if it is not a report."""
    headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
    request = urllib.request.Request(f"{url}/v1/qserve/report", headers=headers)  # noqa: S310 - an option's type checked it
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as reply:  # noqa: S310
            return json.load(reply)
    except urllib.error.HTTPError as error:
        if error.code == 401:
            raise UsageError(f"{url} wants its key: --api-key, or QSERVE_API_KEY") from None
        raise UsageError(f"{url} answered {error.code} to GET /v1/qserve/report; is it a qserve?") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        raise UsageError(
            f"no qserve answers at {url} ({reason}); start one with `qserve up`, or name it: --url"
        ) from None


def _show(console: Console, worker: dict[str, Any]) -> None:
    planned, memory = worker.get("planned") or {}, worker.get("memory") or {}
    console.print(
        f"[bold]{worker['worker']}[/bold]  {', '.join(worker['models'])} · {worker['state']} · "
        f"{_restarts(worker['num_restarts'])} · {planned.get('engine', '')} {planned.get('engine_version', '')}"
    )
    if worker.get("error"):
        console.print(f"  {worker['error']}", markup=False)
    _show_memory(console, planned, memory)
    if worker.get("latency"):
        _show_latency(console, worker["latency"])
    start = " · ".join(
        f"{name} {seconds:.1f} s" for name, seconds in worker["start_phases_s"].items() if seconds >= 0.1
    )
    console.print(f"  start: {start}" if start else "  not started yet")
    if worker.get("work"):
        _show_work(console, worker["work"])
    console.print()


def _restarts(count: int) -> str:
    return f"{count} restart{'' if count == 1 else 's'}"


def _show_memory(console: Console, planned: dict[str, Any], memory: dict[str, Any]) -> None:
    table = Table(
        "memory", "planned", "measured", "difference", "measured by", box=None, pad_edge=False, padding=(0, 2)
    )
    for column in table.columns[1:4]:
        column.justify = "right"
    sources = memory.get("sources", {})
    for term, name in _TERMS.items():
        promised = sum(device[f"{term}_bytes"] for device in planned.get("devices", ()))
        found = memory.get(f"{term}_bytes")
        if promised or found:
            table.add_row(name, format_bytes(promised), *_measured(promised, found), sources.get(f"{term}_bytes", ""))
    if planned.get("kv_cache_tokens") and memory.get("kv_cache_tokens"):
        promised, found = planned["kv_cache_tokens"], memory["kv_cache_tokens"]
        source = sources.get("kv_cache_tokens", "")
        table.add_row("KV tokens", f"{promised:,}", f"{found:,}", f"{100 * (found / promised - 1):+.1f} %", source)
    if memory.get("resident_bytes"):
        table.add_row("resident", "", format_bytes(memory["resident_bytes"]), "", sources.get("resident_bytes", ""))
    console.print(table)


def _show_host(console: Console, host: list[dict[str, Any]]) -> None:
    """The processes without a model; an older service does not report them."""
    if not host:
        return
    table = _table("beside the models", "planned", "measured", "difference")
    for one in host:
        held = one["resident_bytes"]
        found = _measured(one["planned_bytes"], held) if held is not None else ("not running", "")
        table.add_row(one["process"], format_bytes(one["planned_bytes"]), *found)
    console.print(table)


def _show_latency(console: Console, latency: dict[str, Any]) -> None:
    table = _table("latency, ms", "planned mean", "80 % band", "measured mean", "p50", "difference")
    for name, key in (("first token", "ttft_ms"), ("per output token", "tpot_ms")):
        one = latency[key]
        table.add_row(
            name, f"{one['planned_mean']:.1f}", f"{one['low']:.1f} to {one['high']:.1f}", f"{one['measured_mean']:.1f}",
            f"{one['measured_p50']:.1f}", f"{100 * one['difference']:+.1f} %",
        )  # fmt: skip
    console.print(table)
    console.print(f"  {latency['num_requests']:,} requests: {latency['source']}", markup=False)
    if taken := others_of(latency):
        note = f"  other programs took {taken} % of this machine's processors meanwhile; the plan assumes none"
        console.print(note, markup=False)


def _table(first: str, *figures: str) -> Table:
    table = Table(first, box=None, pad_edge=False, padding=(0, 2))
    for name in figures:
        table.add_column(name, justify="right")
    return table


def _measured(promised: int, found: int | None) -> tuple[str, str]:
    if found is None:
        return "not measured", ""
    return format_bytes(found), f"{100 * (found / promised - 1):+.1f} %" if promised else ""


def _show_work(console: Console, work: dict[str, Any]) -> None:
    console.print(f"  scored {work['texts']:,} texts of {work['tokens']:,} tokens")
    console.print(
        f"  while busy: {work['tokens_per_s']:,.0f} tokens/s · {work['texts_per_s']:,.1f} texts/s · "
        f"{work['pairs_per_s']:,.1f} pairs/s · padding {100 * work['padding_share']:.1f} % · "
        f"shared beginnings {100 * work['shared_share']:.1f} %"
    )
    table = _table("tokens up to", "requests", "p50 ms", "p90 ms", "p99 ms")
    for row in work["latency_ms"]:
        bound = "more" if row["max_tokens"] is None else str(row["max_tokens"])
        table.add_row(bound, f"{row['requests']:,}", *(f"{row[share]:.1f}" for share in ("p50", "p90", "p99")))
    if work["latency_ms"]:
        console.print(table)
