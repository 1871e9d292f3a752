"""Section: overview: models, machine, decisions, key figures."""

from __future__ import annotations

from collections import Counter
from typing import Any

from qserve.charts.figures import text_of
from qserve.report.blocks import Block, Column, Section, Table, Tile, Tiles
from qserve.report.facts import RunReport
from qserve.report.sections.latency import latency_errors, others_of
from qserve.report.sections.memory import token_error, total_bytes, total_error, total_terms
from qserve.runs import StoredWorker
from qserve.units import format_bytes

__all__ = ["endings", "overview"]

_REFUSED = (400, 404, 405, 413, 415, 422)

_MODELS = (
    Column("worker", "worker"),
    Column("models", "model"),
    Column("architecture", "architecture"),
    Column("parameters", "parameters", "parameters"),
    Column("engine", "engine"),
    Column("weights", "weights"),
    Column("dtype", "computed in"),
    Column("devices", "on"),
    Column("max_model_len", "tokens a request", "count"),
    Column("max_num_seqs", "requests at once", "count"),
)
_MACHINE = (
    Column("cpu", "CPU"),
    Column("cpu_cores", "cores", "count"),
    Column("ram_total_bytes", "memory", "bytes"),
    Column("cards", "cards"),
)
_DECISIONS = (Column("worker", "worker"), Column("decision", "decision"), Column("why", "why", "prose"))


def overview(report: RunReport) -> Section:
    """Always there: a run has a command and a machine."""
    run = report.run
    tiles = tuple(_tiles(report))
    blocks: list[Block] = [Tiles("headline", tiles)] if tiles else []
    if run.workers:
        rows = tuple(_model(worker) for worker in run.workers)
        blocks.append(Table("models", "Models", _MODELS, rows, "From each worker's plan."))
        whys = tuple((worker.name, *why) for worker in run.workers for why in _whys(worker))
        if whys:
            blocks.append(Table("decisions", "Decisions", _DECISIONS, whys))
    machine = _machine(report)
    if machine.rows:
        blocks.append(machine)
    return Section("overview", "Overview", tuple(blocks))


def endings(report: RunReport) -> str:
    """How many requests failed, apart from those that were refused: a client's mistake is no fault of the service."""
    num_errors = report.run.num_errors
    if not num_errors:
        return "none failed"
    statuses = [one.summary.statuses for one in report.traffic.workers]
    refused = sum(count for counts in statuses for status, count in counts.items() if status in _REFUSED)
    if sum(one.num_errors for one in report.traffic.groups) != num_errors or refused > num_errors:
        return f"{num_errors:,} ended with an error"  # the records of some are gone
    failed = f"{num_errors - refused:,} failed" if num_errors > refused else "none failed"
    return failed + (f", {refused:,} refused as invalid" if refused else "")


def _tiles(report: RunReport) -> list[Tile]:
    run = report.run
    tiles = [Tile("requests", run.num_requests, "count", endings(report))] if run.num_requests else []
    for worker in run.workers:
        found = report.traffic_of(worker)
        if found is None:
            continue
        latency = found.summary.latency_ms
        for name, label in (("ttft", "time to first token"), ("tpot", "time per output token")):
            if name in latency:
                remark = f"mean of {worker.name}; p99 {text_of(latency[name].p99, 'ms')}"
                tiles.append(Tile(label, latency[name].mean, "ms", remark))
        if "ttft" not in latency and "e2e" in latency:
            remark = f"mean; p99 {text_of(latency['e2e'].p99, 'ms')}"
            tiles.append(Tile(f"{worker.name} request", latency["e2e"].mean, "ms", remark))
    for worker in run.workers:
        if (error := total_error(report, worker)) is not None:
            planned, held = total_bytes(report, worker)
            only = total_terms(report, worker)
            remark = f"{format_bytes(held)} measured, {format_bytes(planned)} planned{f': {only} only' if only else ''}"
            tiles.append(Tile(f"{worker.name} memory", error, "change", remark))
        if (error := token_error(report, worker)) is not None:
            tiles.append(Tile(f"{worker.name} KV tokens", error, "change", "measured, less planned"))
        taken = others_of(report.latency.get(worker.name, {}))
        others = f"; other programs took {taken} % of the processors" if taken else ""
        for name, error in latency_errors(report, worker.name).items():
            tiles.append(Tile(f"{worker.name} {name}", error, "change", f"measured mean, less planned{others}"))
    return tiles


def _model(worker: StoredWorker) -> tuple[Any, ...]:
    plan = worker.plan
    model, limits, quant = plan.get("model", {}), plan.get("workload", {}), plan.get("quant", {})
    devices = Counter(device["name"] for device in plan.get("devices", ()))
    return (
        worker.name,
        ", ".join(worker.models),
        model.get("architecture"),
        model.get("parameters"),
        f"{plan.get('engine', '?')} {plan.get('engine_version', '')}".strip(),
        quant.get("scheme"),
        plan.get("dtype"),
        " + ".join(name if count == 1 else f"{count} × {name}" for name, count in devices.items()),
        limits.get("max_model_len"),
        limits.get("max_num_seqs"),
    )


def _whys(worker: StoredWorker) -> list[tuple[str, str]]:
    quant = worker.plan.get("quant", {})
    reasons = [(f"weights in {quant.get('scheme')}", str(quant["reason"]))] if quant.get("reason") else []
    model = worker.plan.get("model", {})
    if model.get("revision") and quant.get("checkpoint") == model.get("id"):
        reasons.append((f"revision {model['revision']}", f"the files of {model['id']} that are loaded"))
    return [*reasons, *(("note", str(note)) for note in worker.plan.get("notes", ()))]


def _machine(report: RunReport) -> Table:
    hardware = report.run.hardware
    cards = Counter(str(card.get("name")) for card in hardware.get("devices", ()))
    named = " + ".join(name if count == 1 else f"{count} × {name}" for name, count in cards.items())
    row = (hardware.get("cpu"), hardware.get("cpu_cores"), hardware.get("ram_total_bytes"), named or "none")
    rows = (row,) if hardware else ()
    return Table("machine", "Machine", _MACHINE, rows, "As detected when the run started.")
