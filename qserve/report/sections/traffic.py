"""Section: requests: counts, latencies, and both over time."""

from __future__ import annotations

from collections.abc import Sequence

from qserve.charts.figures import Value, duration, mark_of, moment, text_of
from qserve.charts.scale import ticks
from qserve.charts.spec import Colour, Histogram, Line, Lines
from qserve.report.blocks import Block, Column, Figure, Row, Section, Table, Text
from qserve.report.facts import RunReport
from qserve.runs import RequestGroup, SeriesPoint, WorkerTraffic
from qserve.runs.key_usage import KeyUsage

__all__ = ["latency_histogram", "traffic"]

_NAMES = {
    "queued": "time in the queue",
    "ttft": "time to first token",
    "tpot": "time per output token",
    "e2e": "end to end",
}
_PERCENTILES = (
    Column("latency", "latency"),
    Column("count", "requests", "count"),
    Column("mean_ms", "mean", "ms"),
    Column("p50_ms", "p50", "ms"),
    Column("p90_ms", "p90", "ms"),
    Column("p99_ms", "p99", "ms"),
    Column("max_ms", "longest", "ms"),
)
_ROUTES = (
    Column("route", "route", "code"),
    Column("model", "model"),
    Column("requests", "requests", "count"),
    Column("errors", "errors", "count"),
)
_KEYS = (
    Column("day", "day (UTC)"),
    Column("key", "key"),
    Column("model", "model"),
    Column("requests", "requests", "count"),
    Column("errors", "errors", "count"),
    Column("prompt_tokens", "prompt tokens", "count"),
    Column("output_tokens", "output tokens", "count"),
)
_SERIES = (
    Column("unix_s", "from", "time"),
    Column("requests", "requests", "count"),
    Column("errors", "errors", "count"),
    Column("prompt_tokens", "prompt tokens", "count"),
    Column("output_tokens", "output tokens", "count"),
    Column("ttft_p50_ms", "TTFT p50", "ms"),
    Column("tpot_p50_ms", "TPOT p50", "ms"),
    Column("e2e_p50_ms", "E2E p50", "ms"),
    Column("e2e_p99_ms", "E2E p99", "ms"),
)
_BINS = (Column("from_ms", "from", "ms"), Column("to_ms", "to", "ms"), Column("requests", "requests", "count"))
_COLOURS: dict[str, Colour] = {"ttft": "3", "tpot": "4"}
_FEWEST_POINTS = 2
_NUM_LABELS = 4
_TITLE = "Latency and throughput"
_GONE = (
    "The records of {:,} of {:,} requests were deleted because the store exceeded --keep-runs-gib. The figures below "
    "are of the others."
)
_TPOT = (
    " Time per output token is (end to end − time to first token) / (tokens − 1) of each stream; events are counted "
    "where the client did not ask for token counts."
)


def traffic(report: RunReport) -> Section | None:
    """By worker; requests that reached none are among the routes."""
    num_kept = sum(one.num_requests for one in report.traffic.groups)
    num_gone = report.run.num_requests - num_kept
    gone = [Text(_GONE.format(num_gone, report.run.num_requests))] if num_gone > 0 else []
    if not num_kept:
        return Section("traffic", _TITLE, tuple(gone)) if gone else None
    rows = _by_route(report.traffic.groups)
    blocks: list[Block] = [
        *gone,
        Table("routes", "Requests by route", _ROUTES, rows, "Every request that reached the gateway."),
    ]
    if report.keys:
        how = "Of keys with names (--keys). Where an answer told no usage, its events count as tokens."
        blocks.append(Table("keys", "Requests by key", _KEYS, tuple(map(_key, report.keys)), how))
    for found in report.traffic.workers:
        if found.worker and found.summary.latency_ms:
            blocks += _worker(found)
    return Section("traffic", _TITLE, tuple(blocks))


def _by_route(groups: Sequence[RequestGroup]) -> tuple[tuple[Value, ...], ...]:
    """Route, model, requests and errors: summed over workers, which have tables of their own."""
    summed: dict[tuple[str, str], tuple[int, int]] = {}
    for one in groups:
        requests, errors = summed.get((one.route, one.model), (0, 0))
        summed[one.route, one.model] = (requests + one.num_requests, errors + one.num_errors)
    return tuple((route, model or None, *counts) for (route, model), counts in summed.items())


def _key(one: KeyUsage) -> tuple[Value, ...]:
    tokens = (one.prompt_tokens, one.generated_tokens)
    return (one.day, one.key, one.model or None, one.num_requests, one.num_refused, *tokens)


def _worker(found: WorkerTraffic) -> list[Block]:
    summary = found.summary
    rows: tuple[tuple[Value, ...], ...] = tuple(
        (_NAMES[name], one.count, one.mean, one.p50, one.p90, one.p99, one.max)
        for name, one in summary.latency_ms.items()
    )
    window = ""
    if summary.first_unix_s and summary.last_unix_s:
        window = f", from {moment(summary.first_unix_s)} for {duration(summary.last_unix_s - summary.first_unix_s)}"
    how = f"Of successful requests, by the gateway's clock{window}.{_TPOT if 'tpot' in summary.latency_ms else ''}"
    table = Table(f"latency_{found.worker}", f"{found.worker}: latency of all requests", _PERCENTILES, rows, how)
    over_time, histograms = _over_time(found), _histograms(found)
    rows_of = [over_time, histograms] if len(over_time) % 2 == 0 else [[*over_time, *histograms]]
    series = [_series(found)] if over_time else []
    return [table, *(Row(tuple(figures)) for figures in rows_of if figures), *series]


def _over_time(found: WorkerTraffic) -> list[Figure]:
    if len(found.series) < _FEWEST_POINTS:
        return []
    name = found.worker
    requests = Line("requests", "1", tuple(one.num_requests / found.bucket_s for one in found.series))
    output = Line("output tokens", "2", tuple(one.completion_tokens / found.bucket_s for one in found.series))
    prompt = Line("prompt tokens", "5", tuple(one.prompt_tokens / found.bucket_s for one in found.series))
    errors = Line("errors", "6", tuple(one.num_errors / found.bucket_s for one in found.series))
    series = (requests, errors) if found.summary.num_errors else (requests,)
    charts: list[Figure] = [_lines(found, f"{name}: requests a second", series, "rate")]
    if found.summary.completion_tokens or found.summary.prompt_tokens:
        chosen = tuple(line for line in (output, prompt) if any(line.values))
        charts.append(_lines(found, f"{name}: tokens a second", chosen, "rate"))
    if "ttft" in found.summary.latency_ms:
        ttft = Line("TTFT p50", "3", tuple(one.ttft_p50_ms for one in found.series))
        tpot = Line("TPOT p50", "4", tuple(one.tpot_p50_ms for one in found.series))
        charts.append(_lines(found, f"{name}: time to first token and per output token, medians", (ttft, tpot), "ms"))
    p50 = Line("E2E p50", "1", tuple(one.e2e_p50_ms for one in found.series))
    p99 = Line("E2E p99", "6", tuple(one.e2e_p99_ms for one in found.series))
    charts.append(_lines(found, f"{name}: end to end", (p50, p99), "ms"))
    return charts


def _series(found: WorkerTraffic) -> Table:
    rows = tuple(_row(one) for one in found.series)
    how = f"Each point covers the requests that arrived in {duration(found.bucket_s)}."
    return Table(f"series_{found.worker}", f"{found.worker}: over time", _SERIES, rows, how, is_long=True)


def _lines(found: WorkerTraffic, title: str, lines: tuple[Line, ...], kind: str) -> Figure:
    """Its table holds no rows: the one of the whole series is below the charts."""
    times = tuple(one.unix_s for one in found.series)
    table = Table("", title, (), ())
    return Figure(Lines(times, lines, "rate" if kind == "rate" else "ms", float(found.bucket_s)), table)


def _row(one: SeriesPoint) -> tuple[Value, ...]:
    return (
        one.unix_s,
        one.num_requests,
        one.num_errors,
        one.prompt_tokens,
        one.completion_tokens,
        one.ttft_p50_ms,
        one.tpot_p50_ms,
        one.e2e_p50_ms,
        one.e2e_p99_ms,
    )


def _histograms(found: WorkerTraffic) -> list[Figure]:
    figures: list[Figure] = []
    for name in ("ttft", "tpot", "e2e"):
        one, percentiles = found.histograms.get(name), found.summary.latency_ms.get(name)
        if one is None or percentiles is None:
            continue
        marks = (("p50", percentiles.p50), ("p90", percentiles.p90))
        rows = [
            (one.bin_ms * index, one.bin_ms * (index + 1), count) for index, count in enumerate(one.counts) if count
        ]
        beyond: list[tuple[Value, ...]] = [(one.bin_ms * len(one.counts), None, one.num_beyond)]
        table = Table(
            f"histogram_{name}_{found.worker}",
            f"{found.worker}: {_NAMES[name]}, distribution",
            _BINS,
            (*rows, *beyond),
            f"{percentiles.count:,} requests, drawn up to the 99th percentile.",
            is_long=True,
        )
        figures.append(Figure(latency_histogram(one.bin_ms, one.counts, _COLOURS.get(name, "1"), marks), table))
    return figures


def latency_histogram(
    bin_ms: float, counts: Sequence[int], colour: Colour, marks: Sequence[tuple[str, float]] = ()
) -> Histogram:
    """Of requests in bins of `bin_ms` from 0, with lines at the milliseconds of `marks`."""
    span = bin_ms * len(counts)
    return Histogram(
        tuple(text_of(bin_ms * index, "ms") for index in range(len(counts) + 1)),
        tuple(map(float, counts)),
        colour,
        "requests",
        tuple((name, at / span) for name, at in marks),
        tuple((mark / span, mark_of(mark, "ms")) for mark in ticks(span, _NUM_LABELS) if mark <= span),
    )
