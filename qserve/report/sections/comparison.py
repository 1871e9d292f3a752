"""Section: comparisons of quantizations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from qserve.charts.figures import Value, day_and_time, text_of
from qserve.charts.spec import Point, Scatter, is_beaten
from qserve.report.blocks import Block, Column, Figure, Section, Table, Text
from qserve.report.facts import RunReport
from qserve.runs import StoredDocument

__all__ = ["comparison", "tradeoffs"]

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
    chart = tradeoffs(
        [
            (one["quant"], one["weights_bytes"], one["accuracy"], one.get("stderr") or 0.0, one["load"]["tokens_per_s"])
            for one in candidates
        ]
    )
    advice = one.document.get("advice")
    return [Figure(chart, table), *([Text(f"{str(advice)[:1].upper()}{str(advice)[1:]}.")] if advice else [])]


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


def tradeoffs(candidates: Sequence[tuple[str, int, float, float, float]]) -> Scatter:
    """Of the name, the bytes of weights, the accuracy with its standard error and the tokens/s of each quantization."""
    pairs = [(float(num_bytes), accuracy) for _, num_bytes, accuracy, _, _ in candidates]
    fastest = max(rate for *_, rate in candidates)
    points = tuple(
        Point(
            name,
            *pair,
            is_front=not is_beaten(pair, pairs),
            text=f"{text_of(pair[1], 'share')} · {rate:,.0f} tok/s",
            stderr=stderr,
            size=rate / max(fastest, 1e-9),
        )
        for pair, (name, _, _, stderr, rate) in zip(pairs, candidates, strict=True)
    )
    return Scatter(
        points,
        "weights in memory",
        "accuracy",
        "bytes",
        "share",
        keys=("none is as accurate in less memory", "another is"),
        remark="area of a point: tokens/s · ± standard error",
        names_all=True,
    )
