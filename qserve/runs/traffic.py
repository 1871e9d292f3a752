"""Aggregates all requests of a run for a report, a million in about two seconds.

Sorting in SQL takes a window function for each latency, about two seconds each; here every row is read once, values are
kept by the bucket of time that they fall in, and what is sorted are these short lists. Sorting their concatenation
afterwards merges runs that are in order already.
"""

from __future__ import annotations

import bisect
import itertools
import sqlite3
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from qserve.runs.records import (
    Histogram,
    Percentiles,
    RequestGroup,
    RequestSummary,
    SeriesPoint,
    Traffic,
    WorkerTraffic,
)

__all__ = ["traffic_of"]

_LATENCIES = ("queued", "ttft", "tpot", "e2e")
_NUM_BINS = 40
_US_PER_MS = 1000
Key = TypeVar("Key")


@dataclass(slots=True)
class _Bucket:
    """Requests that arrived within one bucket of time; latencies in microseconds, of those that succeeded."""

    num_requests: int = 0
    num_errors: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    queued: array[int] = field(default_factory=lambda: array("q"))
    ttft: array[int] = field(default_factory=lambda: array("q"))
    tpot: array[float] = field(default_factory=lambda: array("d"))
    e2e: array[int] = field(default_factory=lambda: array("q"))


@dataclass(slots=True)
class _Label:
    """What requests of one label have in common, and how many there are."""

    route: str
    model: str
    worker: str
    status: int
    error_code: str
    client_left: int
    num_requests: int = 0

    @property
    def has_succeeded(self) -> bool:
        return self.status < 400 and not self.error_code and not self.client_left


@dataclass(slots=True)
class _Worker:
    buckets: dict[int, _Bucket] = field(default_factory=dict)
    last_unix_ms: int = 0


def traffic_of(connection: sqlite3.Connection, run: int, bucket_s: int) -> Traffic:
    """Of run number `run`, with a point of each series for `bucket_s` seconds."""
    labels = {
        row[0]: _Label(*row[1:])
        for row in connection.execute(
            "SELECT number, route, model, worker, status, error_code, client_left FROM request_label"
        )
    }
    workers = _swept(connection, run, labels, bucket_s)
    return Traffic(
        groups=_groups(labels.values()),
        workers=tuple(
            _traffic(name, found, [one for one in labels.values() if one.worker == name], bucket_s)
            for name, found in sorted(workers.items())
        ),
    )


def _swept(connection: sqlite3.Connection, run: int, labels: Mapping[int, _Label], bucket_s: int) -> dict[str, _Worker]:
    """The sweep; a line in its loop costs a tenth of a second a million requests."""
    workers: dict[str, _Worker] = {}
    of_label = {number: (label, label.has_succeeded, label.worker) for number, label in labels.items()}
    width_ms = 1000 * bucket_s
    rows = connection.execute(
        "SELECT label, began_unix_ms, e2e_us, queued_us, ttft_us, prompt_tokens, completion_tokens, num_events "
        "FROM request WHERE run = ?",
        [run],
    )
    for number, began_ms, e2e_us, queued_us, ttft_us, prompt_tokens, completion_tokens, num_events in rows:
        label, has_succeeded, name = of_label[number]
        worker = workers.get(name)
        if worker is None:
            worker = workers[name] = _Worker()
        bucket = worker.buckets.get(began_ms // width_ms)
        if bucket is None:
            bucket = worker.buckets[began_ms // width_ms] = _Bucket()
        label.num_requests += 1
        bucket.num_requests += 1
        bucket.prompt_tokens += prompt_tokens or 0
        if completion_tokens is None and ttft_us is not None:  # a stream that nobody asked to be counted
            completion_tokens = num_events
        bucket.completion_tokens += completion_tokens or 0
        if (ended_ms := began_ms + e2e_us // 1000) > worker.last_unix_ms:
            worker.last_unix_ms = ended_ms
        if not has_succeeded:
            bucket.num_errors += label.error_code != ""
            continue
        bucket.e2e.append(e2e_us)
        if queued_us is not None:
            bucket.queued.append(queued_us)
        if ttft_us is not None:
            bucket.ttft.append(ttft_us)
            if completion_tokens > 1 and e2e_us > ttft_us:  # else its tokens were sent at once
                bucket.tpot.append((e2e_us - ttft_us) / (completion_tokens - 1))
    return workers


def _groups(labels: Iterable[_Label]) -> tuple[RequestGroup, ...]:
    """Most requests first."""
    found: dict[tuple[str, str, str], list[int]] = {}
    for label in labels:
        if label.num_requests:
            counts = found.setdefault((label.route, label.model, label.worker), [0, 0])
            counts[0] += label.num_requests
            counts[1] += label.num_requests if label.error_code else 0
    groups = (RequestGroup(*names, *counts) for names, counts in found.items())
    return tuple(sorted(groups, key=lambda group: (-group.num_requests, group.route)))


def _traffic(name: str, worker: _Worker, labels: Sequence[_Label], bucket_s: int) -> WorkerTraffic:
    ordered = sorted(worker.buckets.items())
    points: list[SeriesPoint] = []
    values: dict[str, list[float]] = {latency: [] for latency in _LATENCIES}
    for number, bucket in ordered:
        of_bucket = {latency: sorted(getattr(bucket, latency)) for latency in _LATENCIES}
        points.append(_point(number * bucket_s, bucket, of_bucket))
        for latency, found in of_bucket.items():
            values[latency] += found
    for found in values.values():
        found.sort()
    begun = [label for label in labels if label.num_requests]
    summary = RequestSummary(
        num_requests=sum(label.num_requests for label in begun),
        num_errors=sum(label.num_requests for label in begun if label.error_code),
        num_client_left=sum(label.num_requests for label in begun if label.client_left),
        first_unix_s=float(ordered[0][0] * bucket_s),
        last_unix_s=worker.last_unix_ms / 1000,
        prompt_tokens=sum(bucket.prompt_tokens for _, bucket in ordered),
        completion_tokens=sum(bucket.completion_tokens for _, bucket in ordered),
        statuses=_counts((label.status, label.num_requests) for label in begun),
        errors=_counts((label.error_code, label.num_requests) for label in begun if label.error_code),
        latency_ms={latency: _percentiles(found) for latency, found in values.items() if found},
    )
    histograms = {latency: _histogram(found) for latency, found in values.items() if found and found[-1] > 0}
    return WorkerTraffic(name, bucket_s, summary, tuple(points), histograms)


def _point(unix_s: int, bucket: _Bucket, values: Mapping[str, Sequence[float]]) -> SeriesPoint:
    def at(latency: str, share: float) -> float | None:
        return round(_at(values[latency], share) / _US_PER_MS, 3) if values[latency] else None

    return SeriesPoint(
        float(unix_s),
        bucket.num_requests,
        bucket.num_errors,
        bucket.prompt_tokens,
        bucket.completion_tokens,
        at("ttft", 0.5),
        at("tpot", 0.5),
        at("e2e", 0.5),
        at("e2e", 0.99),
    )


def _percentiles(ranked: Sequence[float]) -> Percentiles:
    us = (sum(ranked) / len(ranked), ranked[0], *(_at(ranked, share) for share in (0.5, 0.9, 0.99)), ranked[-1])
    return Percentiles(len(ranked), *(round(value / _US_PER_MS, 3) for value in us))


def _at(ranked: Sequence[float], share: float) -> float:
    """Between two values on a straight line, as numpy's default has it."""
    place = share * (len(ranked) - 1)
    below = int(place)
    above = min(below + 1, len(ranked) - 1)
    return ranked[below] + (place - below) * (ranked[above] - ranked[below])


def _histogram(ranked: Sequence[float]) -> Histogram:
    """Equal bins up to the 99th percentile, and one count of what is beyond."""
    width = max(1e-3, _at(ranked, 0.99) / _NUM_BINS)
    edges = [bisect.bisect_left(ranked, index * width) for index in range(_NUM_BINS + 1)]
    counts = tuple(after - before for before, after in itertools.pairwise(edges))
    return Histogram(width / _US_PER_MS, counts, len(ranked) - edges[-1])


def _counts(pairs: Iterable[tuple[Key, int]]) -> dict[Key, int]:
    sums: dict[Key, int] = {}
    for key, count in pairs:
        sums[key] = sums.get(key, 0) + count
    return sums
