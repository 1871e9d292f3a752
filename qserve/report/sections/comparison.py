"""Section: comparisons of quantizations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from qserve.report.blocks import Block, Column, Figure, Section, Table, Text, Value
from qserve.report.charts.specs import Point, Points
from qserve.report.facts import RunReport
from qserve.report.figures import day_and_time, text_of
from qserve.runs import StoredDocument

__all__ = ["comparison"]

_COLUMNS = (
    Column("quant", "quantization"),
    Column("weights_bytes", "weights", "bytes"),
    Column("resident_bytes", "resident", "bytes"),
    Column("accuracy", "accuracy", "share"),
    Column("stderr", "± standard error", "share"),
    Column("ttft_ms", "TTFT", "ms"),
    Column("tpot_ms", "TPOT", "ms"),
    Column("tokens_per_s", "tokens/s", "number"),
    Column("start_s", "start", "s"),
    Column("answer_tokens", "tokens an answer", "number"),
    Column("tokens_per_right", "tokens a right answer", "number"),
    Column("seconds_per_right", "time a right answer", "s"),
    Column("usd_per_right", "USD a right answer", "number"),
    Column("flips", "flipped answers", "count"),
    Column("p_value", "p", "number"),
)


def comparison(report: RunReport) -> Section | None:
    """The Pareto picture of each comparison of the model that was served."""
    blocks: list[Block] = []
    for one in report.comparisons:
        candidates = list(one.document.get("candidates", ()))
        if candidates:
            blocks += _figure(one, candidates)
    return Section("comparison", "Quantizations compared", tuple(blocks)) if blocks else None


def _figure(one: StoredDocument, candidates: list[Mapping[str, Any]]) -> list[Block]:
    rows = tuple(_row(candidate) for candidate in candidates)
    how = (
        "One server after the other, with the same items and the same load. p: McNemar's exact test against the first "
        "quantization, the smallest over all tasks."
    )
    table = Table(
        f"comparison_{one.number}",
        f"{one.document.get('title') or one.name} · {day_and_time(one.unix_s)}",
        _COLUMNS,
        rows,
        how,
    )
    fastest = max(candidate["load"]["tokens_per_s"] for candidate in candidates)
    points = tuple(_point(candidate, candidates, fastest) for candidate in candidates)
    advice = one.document.get("advice")
    return [
        Figure(Points(points, "weights in memory", "accuracy"), table),
        *([Text(f"{str(advice)[:1].upper()}{str(advice)[1:]}.")] if advice else []),
    ]


def _row(one: Mapping[str, Any]) -> tuple[Value, ...]:
    load, diffs = one["load"], one.get("against_first", ())
    flips = sum(len(task["flips"]) for task in diffs) if diffs else None
    return (
        one["quant"],
        one["weights_bytes"],
        one.get("memory", {}).get("resident_bytes"),
        one["accuracy"],
        one.get("stderr"),
        load.get("ttft_ms"),
        load.get("tpot_ms"),
        load["tokens_per_s"],
        one.get("start_s"),
        one.get("answer_tokens"),
        one.get("tokens_per_right"),
        one.get("seconds_per_right"),
        one.get("usd_per_right"),
        flips,
        min((task["p_value"] for task in diffs), default=None),
    )


def _point(one: Mapping[str, Any], all_of_them: list[Mapping[str, Any]], fastest: float) -> Point:
    speed = one["load"]["tokens_per_s"]
    is_beaten = any(
        other["weights_bytes"] <= one["weights_bytes"]
        and other["accuracy"] >= one["accuracy"]
        and (other["weights_bytes"], other["accuracy"]) != (one["weights_bytes"], one["accuracy"])
        for other in all_of_them
    )
    text = f"{text_of(one['accuracy'], 'share')} · {speed:,.0f} tok/s"
    size = speed / max(fastest, 1e-9)
    return Point(
        one["quant"], one["weights_bytes"], one["accuracy"], one.get("stderr") or 0.0, size, not is_beaten, text
    )
