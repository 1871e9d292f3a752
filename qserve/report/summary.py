"""What a run comes to on one screen: lines with a label, and two small tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from qserve.charts.figures import Value, duration, text_of
from qserve.report.blocks import Code, Column, Table, Text
from qserve.report.facts import RunReport
from qserve.report.sections.evals import scores_of, title_of
from qserve.report.sections.faults import faults
from qserve.report.sections.latency import latency_errors
from qserve.report.sections.memory import total_bytes
from qserve.report.sections.next_step import next_step
from qserve.report.sections.overview import endings
from qserve.report.sections.training import training_warnings
from qserve.report.smoothing import smoothed
from qserve.runs import StoredDocument, StoredEvent, StoredWorker
from qserve.units import format_bytes, format_count, format_ms, format_parameters

__all__ = ["Labelled", "summary_of"]

_MEMORY = (
    Column("worker", "memory"),
    Column("planned", "planned", "bytes"),
    Column("measured", "measured", "bytes"),
    Column("difference", "difference", "change"),
)
_LATENCY = (
    Column("worker", "latency"),
    Column("figure", ""),
    Column("requests", "requests", "count"),
    Column("mean", "mean", "ms"),
    Column("p50", "p50", "ms"),
    Column("p99", "p99", "ms"),
)
_FIGURES = {"ttft": "first token", "tpot": "per output token", "e2e": "end to end"}
_MOST_RESULTS, _MOST_SCORES, _MOST_CODES = 3, 3, 3


@dataclass(frozen=True)
class Labelled:
    """`lines`, each a phrase; `is_warning`: something that the reader should not miss."""

    label: str
    lines: tuple[str, ...]
    is_warning: bool = False


def summary_of(report: RunReport) -> Iterator[Labelled | Table | Code]:
    """In the order of reading, the next step last; parts without facts are left out."""
    yield from _labelled("served", [_served(worker) for worker in report.run.workers])
    yield from _labelled("machine", _machine(report.run.hardware))
    yield from _labelled("started", _starts(report.run.workers))
    yield from _labelled("requests", _requests(report))
    memory, latency = _memory(report), _latency(report)
    yield from (table for table in (memory, latency) if table.rows)
    yield from _labelled("plan", _against_plan(report))
    yield from _labelled("training", _trained(report))
    yield from _labelled("warning", training_warnings(report), is_warning=True)
    yield from _labelled("rewards", _rewards(report))
    yield from _labelled("evaluation", [line for one in _newest(report.evals, "lm_eval") for line in _evaluated(one)])
    yield from _labelled("compared", [str(one.document["advice"]) for one in _newest(report.comparisons, "advice")])
    yield from _labelled("load test", [line for one in _newest(report.benches, "stages") if (line := _loaded(one))])
    yield from _labelled("faults", _faults(report), is_warning=True)
    yield from (block for block in next_step(report).blocks if isinstance(block, Code))


def _labelled(label: str, lines: list[str], *, is_warning: bool = False) -> Iterator[Labelled]:
    if lines:
        yield Labelled(label, tuple(lines), is_warning)


def _newest(documents: tuple[StoredDocument, ...], key: str) -> tuple[StoredDocument, ...]:
    """The last of those that have something under `key`."""
    return tuple(one for one in documents if one.document.get(key))[-_MOST_RESULTS:]


def _served(worker: StoredWorker) -> str:
    plan = worker.plan
    parameters = plan.get("model", {}).get("parameters")
    parts = (
        f"{worker.name}: {', '.join(worker.models)}",
        f"{format_parameters(parameters)} parameters" if parameters else "",
        plan.get("quant", {}).get("scheme"),
        f"{plan.get('engine', '')} {plan.get('engine_version', '')}".strip(),
    )
    return " · ".join(str(part) for part in parts if part)


def _machine(hardware: Mapping[str, Any]) -> list[str]:
    cards = Counter(str(card.get("name")) for card in hardware.get("devices", ()))
    parts = [f"{count} × {name}" for name, count in cards.items()] or ["no card"]
    if hardware.get("cpu"):
        parts.append(f"{hardware['cpu']}, {hardware.get('cpu_cores')} cores")
    if hardware.get("ram_total_bytes"):
        parts.append(f"{format_bytes(hardware['ram_total_bytes'])} of memory")
    return [" · ".join(parts)] if hardware else []


def _starts(workers: tuple[StoredWorker, ...]) -> list[str]:
    parts = [
        f"{worker.name} in {duration(sum(worker.start_phases_s.values()))}"
        for worker in workers
        if worker.start_phases_s
    ]
    return [", ".join(parts)] if parts else []


def _requests(report: RunReport) -> list[str]:
    run = report.run
    if not run.num_requests:
        return []
    codes = Counter[str]()
    for found in report.traffic.workers:
        codes.update(found.summary.errors)
    told = ", ".join(f"{code} {count:,}" for code, count in codes.most_common(_MOST_CODES))
    return [f"{format_count(run.num_requests)}, {endings(report)}", *([f"errors: {told}"] if told else [])]


def _memory(report: RunReport) -> Table:
    rows: list[tuple[Value, ...]] = []
    for worker in report.run.workers:
        planned, found = total_bytes(report, worker)
        if planned:
            rows.append((worker.name, planned, found, found / planned - 1))
    return Table("memory", "", _MEMORY, tuple(rows))


def _latency(report: RunReport) -> Table:
    rows: list[tuple[Value, ...]] = []
    for worker in report.run.workers:
        found = report.traffic_of(worker)
        for name, title in _FIGURES.items():
            if found and name in found.summary.latency_ms:
                one = found.summary.latency_ms[name]
                rows.append((worker.name, title, one.count, one.mean, one.p50, one.p99))
    return Table("latency", "", _LATENCY, tuple(rows))


def _against_plan(report: RunReport) -> list[str]:
    lines = []
    for worker in report.run.workers:
        errors = latency_errors(report, worker.name)
        if errors:
            parts = ", ".join(f"{name} {text_of(error, 'change')}" for name, error in errors.items())
            count = report.latency[worker.name]["num_requests"]
            lines.append(f"{worker.name}: {parts} against the plan, over the last {count:,} streams")
    return lines


def _trained(report: RunReport) -> list[str]:
    if not report.trainings:
        return []
    document = report.trainings[-1].document
    curve, held_out = document["curve"], document["held_out"]
    name = report.trainings[-1].name or document["method"]
    step, num_steps = document["step"], document["num_steps"] or 0
    steps = f"after {step:,} of {num_steps:,} steps" if step else "before the first step"
    lines = [f"{name}: {document['state']} {steps}"]
    if curve:
        last = smoothed(tuple(one["loss"] for one in curve))[-1]
        lines.append(f"loss {curve[0]['loss']:.4g} at the first step, {last:.4g} at the last, smoothed")
    if held_out.get("pairs"):
        lines.append(
            f"{text_of(held_out['right'] / held_out['pairs'], 'share')} of {held_out['pairs']:,} held-out pairs right"
        )
    return lines


def _rewards(report: RunReport) -> list[str]:
    lines = [
        f"{worker}: {format_count(work['texts'])} texts scored, {text_of(work['texts_per_s'], 'rate')} while busy"
        for worker, work in report.work.items()
        if work.get("texts")
    ]
    for one in _newest(report.evals, "overall"):
        overall = one.document["overall"]
        share = text_of(overall["accuracy"], "share")
        lines.append(f"{share} of {overall['num_asked']:,} preferences right ({one.document.get('file')})")
    return lines


def _evaluated(one: StoredDocument) -> list[str]:
    scores = list(scores_of(one.document.get("lm_eval", {})))
    if not scores:
        return []
    shown = [
        f"{score['task']} {score['metric']} {text_of(score['value'], 'number')}" for score in scores[:_MOST_SCORES]
    ]
    more = [f"{len(scores) - len(shown)} more"] if len(scores) > len(shown) else []
    return [title_of(one), ", ".join([*shown, *more])]


def _loaded(one: StoredDocument) -> str:
    """The stage that got most done."""
    stages = [stage for stage in one.document["stages"] if stage.get("request_throughput")]
    if not stages:
        return ""
    unit, name = (
        ("output_throughput", "output tokens/s")
        if any(stage.get("output_throughput") for stage in stages)
        else ("text_throughput", "texts/s")
    )
    best = max(stages, key=lambda stage: stage.get(unit) or 0.0)
    latencies = [
        f"{title} p99 {format_ms(best[key])}"
        for key, title in (("p99_ttft_ms", "TTFT"), ("p99_tpot_ms", "TPOT"), ("p99_e2el_ms", "E2E"))
        if best.get(key)
    ]
    endpoint = one.document.get("load", {}).get("endpoint", "load")
    return f"{endpoint}, {best['name']}: " + ", ".join([f"{best.get(unit) or 0:,.0f} {name}", *latencies])


def _faults(report: RunReport) -> list[str]:
    """Warnings, and the restarts of each worker with the last reason."""
    section = faults(report)
    if section is None:
        return []
    lines = [block.text for block in section.blocks if isinstance(block, Text)]
    last: dict[str, StoredEvent] = {event.worker: event for event in report.events if event.event == "restart"}
    counts = Counter(event.worker for event in report.events if event.event == "restart")
    for worker, event in last.items():
        times = "once" if counts[worker] == 1 else f"{counts[worker]} times"
        lines.append(f"{worker} restarted {times}: {event.details.get('reason', 'no reason was recorded')}")
    return lines
