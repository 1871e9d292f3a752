"""Section: a reward model's work: rates, latency by length, padding."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from qserve.charts.figures import Value, text_of
from qserve.charts.spec import Bar, Segment, StackedBars
from qserve.report.blocks import Block, Column, Figure, Section, Table, Tile, Tiles
from qserve.report.facts import RunReport
from qserve.units import format_count

__all__ = ["reward"]

_BY_LENGTH = (
    Column("max_tokens", "texts up to"),
    Column("requests", "requests", "count"),
    Column("p50_ms", "p50", "ms"),
    Column("p90_ms", "p90", "ms"),
    Column("p99_ms", "p99", "ms"),
)
_ROWS = (Column("texts", "texts computed together", "count"), Column("rows", "times", "count"))


def reward(report: RunReport) -> Section | None:
    """None where nothing was scored."""
    blocks: list[Block] = []
    for worker, work in report.work.items():
        if work.get("texts"):
            blocks += _worker(worker, work)
    return Section("reward", "Reward model", tuple(blocks)) if blocks else None


def _worker(worker: str, work: Mapping[str, Any]) -> list[Block]:
    sources = work.get("sources", {})
    tiles = (
        Tile("texts scored", work["texts"], "count", f"{format_count(work['tokens'])} tokens"),
        Tile("scores a second", work["texts_per_s"], "number", "while the model is busy"),
        Tile("tokens a second", work["tokens_per_s"], "number", "while the model is busy"),
        Tile("padding", work["padding_share"], "share", "of the tokens that were computed"),
        Tile("shared prefixes", work["shared_share"], "share", "of the tokens, computed once"),
    )
    blocks: list[Block] = [Tiles(f"reward_{worker}", tiles)]
    by_length = work.get("latency_ms", ())
    if by_length:
        rows: tuple[tuple[Value, ...], ...] = tuple(
            (_length(one["max_tokens"]), one["requests"], one["p50"], one["p90"], one["p99"]) for one in by_length
        )
        title = f"{worker}: latency by the length of a request's longest text"
        table = Table(f"reward_latency_{worker}", title, _BY_LENGTH, rows, sources.get("latency_ms", ""))
        blocks.append(Figure(_bars(rows), table))
    together = work.get("texts_a_row") or {}
    if together:
        counts = tuple((int(texts), rows) for texts, rows in together.items())
        how = "Texts of all clients that waited at once, packed into rows."
        blocks.append(Table(f"reward_rows_{worker}", f"{worker}: batch sizes", _ROWS, counts, how, is_long=True))
    return blocks


def _length(max_tokens: Any) -> str:
    if max_tokens == "all":
        return "any length"
    return "longer" if max_tokens is None else f"{max_tokens:,} tokens"


def _bars(rows: tuple[tuple[Value, ...], ...]) -> StackedBars:
    """What p90 and p99 add to p50."""
    bars = []
    for length, _, *percentiles in rows:
        p50, p90, p99 = (float(one or 0) for one in percentiles)
        parts = (("p50", p50, p50, "1"), ("to p90", p90 - p50, p90, "2"), ("to p99", p99 - p90, p99, "free"))
        segments = tuple(
            Segment(name, max(0.0, added), text_of(reached, "ms"), colour)  # type: ignore[arg-type]
            for name, added, reached, colour in parts
        )
        bars.append(Bar(str(length), segments, f"{text_of(p50, 'ms')} · p99 {text_of(p99, 'ms')}"))
    return StackedBars(tuple(bars), max(float(row[-1] or 0) for row in rows))
