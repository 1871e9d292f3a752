"""Section: planned and measured latency by worker, for the requests that arrived."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from qserve.charts.figures import Value
from qserve.planner.speed.bands import INSIDE_PERCENT, INSIDE_PERCENT_LEARNED
from qserve.report.blocks import Block, Column, Section, Table, Text
from qserve.report.facts import RunReport

__all__ = ["latency", "latency_errors", "others_of"]

_NAMES = {"ttft_ms": "time to first token", "tpot_ms": "time per output token"}
_COLUMNS = (
    Column("figure", "latency"),
    Column("planned_ms", "planned mean", "ms"),
    Column("low_ms", "band low", "ms"),
    Column("high_ms", "band high", "ms"),
    Column("planned_p50_ms", "planned p50", "ms"),
    Column("measured_ms", "measured mean", "ms"),
    Column("measured_p50_ms", "measured p50", "ms"),
    Column("difference", "difference", "change"),
)
# Below it other programs are what every machine has.
_FELT_SHARE = 0.1
_LEARNS = (
    "These requests correct the next plan of this model on this machine; --no-learn turns that off. "
    f"The band should contain {INSIDE_PERCENT} % of measured values, {INSIDE_PERCENT_LEARNED} % where earlier runs "
    "corrected the plan."
)


def latency(report: RunReport) -> Section | None:
    """A table for each worker whose latency was planned."""
    blocks: list[Block] = [
        _table(worker.name, report.latency[worker.name])
        for worker in report.run.workers
        if worker.name in report.latency
    ]
    return Section("latency", "Latency: planned against measured", (*blocks, Text(_LEARNS))) if blocks else None


def latency_errors(report: RunReport, worker: str) -> dict[str, float]:
    """Measured over planned, less one, of the means: by the figures' names for people."""
    latency = report.latency.get(worker, {})
    return {title: latency[name]["difference"] for name, title in _NAMES.items() if name in latency}


def others_of(latency: Mapping[str, Any]) -> int:
    """Percent of the machine's processors that other programs took meanwhile; 0 where it is too little to matter."""
    share = latency.get("others_share") or 0.0
    return round(100 * share) if share >= _FELT_SHARE else 0


def _table(name: str, latency: Mapping[str, Any]) -> Table:
    rows: tuple[tuple[Value, ...], ...] = tuple(
        (
            title,
            latency[key]["planned_mean"],
            latency[key]["low"],
            latency[key]["high"],
            latency[key]["planned_p50"],
            latency[key]["measured_mean"],
            latency[key]["measured_p50"],
            latency[key]["difference"],
        )
        for key, title in _NAMES.items()
        if key in latency
    )
    learned = f" The plan uses what run {latency['learned_from']} measured." if latency.get("learned_from") else ""
    taken = others_of(latency)
    loaded = (
        f" Other programs took {taken} % of this machine's processors meanwhile; the plan assumes none."
        if taken
        else ""
    )
    how = (
        f"Measured by the gateway on the last {latency['num_requests']:,} streamed answers with counted tokens; "
        f"planned for the same requests.{learned}{loaded}"
    )
    return Table(f"latency_planned_{name}", f"{name}: latency, planned and measured", _COLUMNS, rows, how)
