"""`qserve report --url`: planned and measured figures of a running service."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import click
from rich.console import RenderableType
from rich.text import Text as RichText

from qserve.charts.figures import Value, text_of
from qserve.cli.report.show import printed
from qserve.cli.report.tables import drawn_table
from qserve.client.answer import NotJson, Unreachable, is_error
from qserve.client.http import ask
from qserve.errors import UsageError
from qserve.planner.speed.bands import INSIDE_PERCENT
from qserve.planner.term import COLUMNS
from qserve.report.blocks import Column, Table
from qserve.report.sections.latency import others_of
from qserve.terminal.console import Hanging, console_of
from qserve.units import format_count, format_ms, format_rate

__all__ = ["show_live", "shown_live"]

_TIMEOUT_S = 30
_WORTH_TELLING_S = 0.1
_MEMORY = (
    Column("term", "memory"),
    Column("planned", "planned", "bytes"),
    Column("measured", "measured", "bytes"),
    Column("difference", "difference", "change"),
    Column("source", "measured by", "prose"),
)
_LATENCY = (
    Column("figure", "mean latency"),
    Column("planned", "planned", "ms"),
    Column("band", f"{INSIDE_PERCENT} % band"),
    Column("mean", "measured", "ms"),
    Column("p50", "p50", "ms"),
    Column("difference", "difference", "change"),
)
_LENGTHS = (
    Column("tokens", "tokens up to"),
    Column("requests", "requests", "count"),
    Column("p50", "p50", "ms"),
    Column("p90", "p90", "ms"),
    Column("p99", "p99", "ms"),
)


def show_live(url: str, api_key: str | None, *, as_json: bool, full: bool) -> None:
    """Print GET /v1/qserve/report of the service at `url`, as tables or JSON. Raises UsageError if none answers."""
    document = _fetched(url.rstrip("/"), api_key)
    if as_json:
        click.echo(json.dumps(document, indent=2, ensure_ascii=False))
        return
    click.echo(printed(shown_live(document, url.rstrip("/"), console_of().width, full=full)), nl=False)


def _fetched(url: str, api_key: str | None) -> Any:
    """GET /v1/qserve/report. Raises UsageError with the answer if it is not a report."""
    try:
        answer = ask("GET", f"{url}/v1/qserve/report", api_key=api_key, timeout_s=_TIMEOUT_S)
        if answer.status == 401:
            raise UsageError(f"{url} needs a key: give it by --api-key or QSERVE_API_KEY")
        if is_error(answer.status):
            raise UsageError(f"{url} answered {answer.status} to GET /v1/qserve/report; is it a qserve?")
        return answer.json()
    except (Unreachable, NotJson) as error:
        raise UsageError(
            f"no service answers at {url} ({error}); start one with `qserve up`, or name one with --url"
        ) from None


def shown_live(document: Mapping[str, Any], url: str, width: int, *, full: bool) -> Iterator[RenderableType]:
    """What the service at `url` told, at most `width` wide; `full`: also how each figure was measured."""
    for worker in document["data"]:
        yield from _worker(worker, width, full)
        yield ""
    # An older service does not report its processes without a model.
    if document.get("host"):
        yield from drawn_table(_host(document["host"]), width)
        yield ""
    yield RichText(f"next        See it as a page: {url}/report")


def _worker(worker: Mapping[str, Any], width: int, full: bool) -> Iterator[RenderableType]:
    planned, memory = worker.get("planned") or {}, worker.get("memory") or {}
    about = (
        ", ".join(worker["models"]),
        worker["state"],
        _restarts(worker["num_restarts"]),
        f"{planned.get('engine', '')} {planned.get('engine_version', '')}".strip(),
    )
    yield RichText.assemble((worker["worker"], "bold"), f"  {' · '.join(part for part in about if part)}")
    if worker.get("error"):
        yield RichText(f"  {worker['error']}", "red")
    yield from drawn_table(_memory(planned, memory, memory.get("sources", {}) if full else {}), width)
    if worker.get("latency"):
        yield from _latency(worker["latency"], width)
    start = ", ".join(
        f"{name} {format_ms(1000 * seconds)}"
        for name, seconds in worker["start_phases_s"].items()
        if seconds >= _WORTH_TELLING_S
    )
    yield Hanging(start or "not started yet", "started     ")
    if worker.get("work"):
        yield from _work(worker["work"], width)


def _restarts(count: int) -> str:
    return "" if not count else "restarted once" if count == 1 else f"restarted {count} times"


def _memory(planned: Mapping[str, Any], memory: Mapping[str, Any], sources: Mapping[str, str]) -> Table:
    rows: list[tuple[Value, ...]] = []
    for term, name in COLUMNS.items():
        promised = sum(device[f"{term}_bytes"] for device in planned.get("devices", ()))
        found = memory.get(f"{term}_bytes")
        if promised or found:
            rows.append((name, promised, found, _change(promised, found), sources.get(f"{term}_bytes", "")))
    tokens = planned.get("kv_cache_tokens"), memory.get("kv_cache_tokens")
    if all(tokens):
        texts = (f"{one:,}" for one in tokens)
        rows.append(("KV tokens", *texts, _change(*tokens), sources.get("kv_cache_tokens", "")))
    if held := memory.get("resident_bytes"):
        rows.append(("resident", None, held, None, sources.get("resident_bytes", "")))
    columns = _MEMORY if sources else _MEMORY[:-1]
    return Table("memory", "", columns, tuple(row[: len(columns)] for row in rows))


def _host(host: Sequence[Mapping[str, Any]]) -> Table:
    rows = tuple(
        (
            one["process"],
            one["planned_bytes"],
            one["resident_bytes"],
            _change(one["planned_bytes"], one["resident_bytes"]),
            "" if one["resident_bytes"] else "not running",
        )
        for one in host
    )
    return Table("host", "", (replace(_MEMORY[0], title="other processes"), *_MEMORY[1:]), rows)


def _change(planned: float | None, found: float | None) -> float | None:
    return found / planned - 1 if planned and found is not None else None


def _latency(latency: Mapping[str, Any], width: int) -> Iterator[RenderableType]:
    rows = tuple(
        (
            title,
            one["planned_mean"],
            f"{one['low']:.1f} to {one['high']:.1f} ms",
            one["measured_mean"],
            one["measured_p50"],
            one["difference"],
        )
        for title, one in (("first token", latency["ttft_ms"]), ("per output token", latency.get("tpot_ms")))
        if one is not None
    )
    yield from drawn_table(Table("latency", "", _LATENCY, rows), width)
    yield RichText(f"Of {latency['num_requests']:,} requests: {latency['source']}.")
    if taken := others_of(latency):
        yield RichText(f"Other programs took {taken} % of this machine's processors meanwhile; the plan assumes none.")


def _work(work: Mapping[str, Any], width: int) -> Iterator[RenderableType]:
    yield Hanging(f"{format_count(work['texts'])} texts of {format_count(work['tokens'])} tokens", "scored      ")
    yield Hanging(
        f"{format_rate(work['tokens_per_s'])} tokens/s, {format_rate(work['texts_per_s'])} texts/s, "
        f"{format_rate(work['pairs_per_s'])} pairs/s; padding {text_of(work['padding_share'], 'share')}, "
        f"shared prefixes {text_of(work['shared_share'], 'share')}",
        "while busy  ",
    )
    rows = tuple(
        (
            "more" if row["max_tokens"] is None else str(row["max_tokens"]),
            row["requests"],
            row["p50"],
            row["p90"],
            row["p99"],
        )
        for row in work["latency_ms"]
    )
    if rows:
        yield from drawn_table(Table("lengths", "", _LENGTHS, rows), width)
