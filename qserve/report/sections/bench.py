"""Section: load tests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from qserve.charts.figures import Value, day_and_time, text_of
from qserve.charts.spec import Bar, Segment, StackedBars
from qserve.report.blocks import Block, Column, Figure, Section, Table, Text
from qserve.report.facts import RunReport
from qserve.runs import StoredDocument

__all__ = ["bench"]

_COLUMNS = (
    Column("load", "load"),
    Column("completed", "answered", "count"),
    Column("failed", "failed", "count"),
    Column("requests_per_s", "requests/s", "number"),
    Column("texts_per_s", "texts/s", "number"),
    Column("tokens_per_s", "tokens/s", "number"),
    Column("output_tokens_per_s", "output tokens/s", "number"),
    Column("ttft_p50_ms", "TTFT p50", "ms"),
    Column("ttft_p99_ms", "TTFT p99", "ms"),
    Column("tpot_p50_ms", "TPOT p50", "ms"),
    Column("tpot_p99_ms", "TPOT p99", "ms"),
    Column("e2e_p50_ms", "E2E p50", "ms"),
    Column("e2e_p99_ms", "E2E p99", "ms"),
    Column("goodput_per_s", "goodput/s", "number"),
)
_FIELDS = (
    "name",
    "completed",
    "failed",
    "request_throughput",
    "text_throughput",
    "total_token_throughput",
    "output_throughput",
    "median_ttft_ms",
    "p99_ttft_ms",
    "median_tpot_ms",
    "p99_tpot_ms",
    "median_e2el_ms",
    "p99_e2el_ms",
    "request_goodput",
)
_OF_GENERATION = {"output_throughput"}
_OF_SCORING = {"text_throughput", "total_token_throughput"}
_MOST_KINDS = 5


def bench(report: RunReport) -> Section | None:
    """A figure for each load test of this run."""
    blocks: list[Block] = []
    for one in report.benches:
        stages = list(one.document.get("stages", ()))
        if stages:
            blocks += _figure(one, stages)
    return Section("bench", "Load tests", tuple(blocks)) if blocks else None


def _figure(one: StoredDocument, stages: list[Mapping[str, Any]]) -> list[Block]:
    left_out = _OF_SCORING if _generates(stages) else _OF_GENERATION
    cells = [
        (column, name)
        for column, name in zip(_COLUMNS, _FIELDS, strict=True)
        if name not in left_out and any(stage.get(name) is not None for stage in stages)
    ]
    columns = tuple(column for column, _ in cells)
    rows: tuple[tuple[Value, ...], ...] = tuple(tuple(stage.get(name) for _, name in cells) for stage in stages)
    load = one.document.get("load", {})
    how = "By the client's clock."
    title = " · ".join(str(load[name]) for name in ("endpoint", "dataset") if load.get(name)) or "load"
    table = Table(f"bench_{one.number}", f"{title}: {one.name} · {day_and_time(one.unix_s)}", columns, rows, how)
    sentence = (one.document.get("saturation") or {}).get("sentence")
    notes = [sentence, *_failures(stages), *one.document.get("notes", ())]
    told_of: list[Block] = [table]
    if len(stages) > 1:
        told_of = [Figure(_throughput(stages), table), *_latencies(table.title, stages)]
    return [*told_of, *(Text(str(note)) for note in notes if note)]


def _latencies(title: str, stages: list[Mapping[str, Any]]) -> list[Figure]:
    """From stage to stage. Their tables hold no rows: the one of all stages is above them."""
    streamed = any(stage.get("p99_ttft_ms") for stage in stages)
    names = {"ttft": "time to first token", "tpot": "time per output token"} if streamed else {"e2el": "end to end"}
    return [Figure(_latency(stages, key), Table("", f"{title}: {name}", (), ())) for key, name in names.items()]


def _generates(stages: list[Mapping[str, Any]]) -> bool:
    return any(stage.get("output_throughput") for stage in stages)


def _failures(stages: list[Mapping[str, Any]]) -> list[str]:
    """How many of each kind over all stages, with one sentence of it; the kinds that happened most."""
    kinds: Counter[str] = Counter()
    sentences: dict[str, str] = {}
    for stage in stages:
        kinds.update(stage.get("errors") or {})
        sentences.update(stage.get("error_sentences") or {})
    return [f"{count:,} failed, {kind}: {sentences.get(kind, '')}" for kind, count in kinds.most_common(_MOST_KINDS)]


def _throughput(stages: list[Mapping[str, Any]]) -> StackedBars:
    """Output tokens, or texts where nothing is generated."""
    unit = "output_throughput" if _generates(stages) else "text_throughput"
    name = "output tokens a second" if unit == "output_throughput" else "texts a second"
    bars = []
    for stage in stages:
        value = float(stage.get(unit) or 0.0)
        text = text_of(value, "rate")
        bars.append(Bar(str(stage.get("name")), (Segment(name, value, text, "2"),), text))
    return StackedBars(tuple(bars), max(max(bar.segments[0].value for bar in bars), 1e-9))


def _latency(stages: list[Mapping[str, Any]], name: str) -> StackedBars:
    """The median, and what the 99th percentile adds to it."""
    bars = []
    for stage in stages:
        p50, p99 = (float(stage.get(f"{share}_{name}_ms") or 0.0) for share in ("median", "p99"))
        parts = (Segment("p50", p50, text_of(p50, "ms"), "1"), Segment("to p99", p99 - p50, text_of(p99, "ms"), "free"))
        bars.append(Bar(str(stage.get("name")), parts, f"{text_of(p50, 'ms')} · p99 {text_of(p99, 'ms')}"))
    return StackedBars(tuple(bars), max(float(stage.get(f"p99_{name}_ms") or 0.0) for stage in stages))
