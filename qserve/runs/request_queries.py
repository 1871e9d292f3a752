"""Requests of a run: rows, and what SQL makes of a million of them in a second or two."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from qserve.runs.records import Percentiles, RequestGroup, RequestSummary, SeriesPoint, StoredRequest

__all__ = ["RequestFilter", "groups_of", "requests_of", "series_of", "summary_of"]

_TOKENS = "coalesce(completion_tokens, num_events)"
_TPOT_US = f"CASE WHEN {_TOKENS} > 1 THEN (e2e_us - ttft_us) / ({_TOKENS} - 1.0) END"
_LATENCIES = {"queued": "queued_us", "ttft": "ttft_us", "tpot": _TPOT_US, "e2e": "e2e_us"}
_SUCCEEDED = "label.status < 400 AND label.error_code = '' AND NOT label.client_left"
_FROM = "request JOIN request_label AS label ON label.number = request.label"
_SHARES = (0.5, 0.9, 0.99)
Key = TypeVar("Key")


@dataclass(frozen=True)
class RequestFilter:
    """Which requests of run number `run`; None: any. `since_unix_s` and `until_unix_s` bound their arrival."""

    run: int
    route: str | None = None
    model: str | None = None
    worker: str | None = None
    since_unix_s: float | None = None
    until_unix_s: float | None = None
    only_errors: bool = False

    def where(self) -> tuple[str, dict[str, object]]:
        """The condition, and its values by name."""
        wanted = {
            "label.route = :route": self.route,
            "label.model = :model": self.model,
            "label.worker = :worker": self.worker,
            "began_unix_ms >= 1000.0 * :since": self.since_unix_s,
            "began_unix_ms < 1000.0 * :until": self.until_unix_s,
        }
        conditions = ["run = :run", *(text for text, value in wanted.items() if value is not None)]
        if self.only_errors:
            conditions.append("label.error_code != ''")
        values = {text.rpartition(":")[2]: value for text, value in wanted.items() if value is not None}
        return " AND ".join(conditions), {"run": self.run, **values}


def requests_of(
    connection: sqlite3.Connection, chosen: RequestFilter, limit: int, offset: int
) -> tuple[StoredRequest, ...]:
    """Newest first."""
    where, values = chosen.where()
    rows = connection.execute(
        f"""SELECT request_id, began_unix_ms / 1000.0, queued_us / 1000.0, ttft_us / 1000.0, {_TPOT_US} / 1000.0,
                   e2e_us / 1000.0, prompt_tokens, completion_tokens, num_events,
                   method, route, model, worker, status, error_code, is_background, client_left
            FROM {_FROM} WHERE {where} ORDER BY request.number DESC LIMIT :limit OFFSET :offset""",  # noqa: S608
        {**values, "limit": limit, "offset": offset},
    )
    return tuple(StoredRequest(*(*row[:-2], bool(row[-2]), bool(row[-1]))) for row in rows)


def groups_of(connection: sqlite3.Connection, chosen: RequestFilter) -> tuple[RequestGroup, ...]:
    """Route, model and worker together, most requests first."""
    where, values = chosen.where()
    rows = connection.execute(
        f"""SELECT route, model, worker, count(*), sum(error_code != '')
            FROM {_FROM} WHERE {where} GROUP BY route, model, worker ORDER BY count(*) DESC, route""",  # noqa: S608
        values,
    )
    return tuple(RequestGroup(*row) for row in rows)


def summary_of(connection: sqlite3.Connection, chosen: RequestFilter) -> RequestSummary:
    """Counts in one sweep, then one sorted sweep for each latency."""
    where, values = chosen.where()
    by_label = connection.execute(
        f"""SELECT status, error_code, client_left, count(*), min(began_unix_ms), max(began_unix_ms + e2e_us / 1000),
                   sum(prompt_tokens), sum(completion_tokens)
            FROM {_FROM} WHERE {where} GROUP BY request.label""",  # noqa: S608
        values,
    ).fetchall()
    return RequestSummary(
        num_requests=sum(row[3] for row in by_label),
        num_errors=sum(row[3] for row in by_label if row[1]),
        num_client_left=sum(row[3] for row in by_label if row[2]),
        first_unix_s=_seconds(min(row[4] for row in by_label)) if by_label else None,
        last_unix_s=_seconds(max(row[5] for row in by_label)) if by_label else None,
        prompt_tokens=sum(row[6] or 0 for row in by_label),
        completion_tokens=sum(row[7] or 0 for row in by_label),
        statuses=_summed((row[0], row[3]) for row in by_label),
        errors=_summed((row[1], row[3]) for row in by_label if row[1]),
        latency_ms=_latencies(connection, where, values),
    )


def series_of(connection: sqlite3.Connection, chosen: RequestFilter, bucket_s: int) -> tuple[SeriesPoint, ...]:
    """Buckets in order of time; those without requests are left out."""
    where, values = chosen.where()
    bucket = "began_unix_ms / (1000 * :bucket)"
    counts = connection.execute(
        f"""SELECT {bucket}, count(*), sum(error_code != ''), sum(prompt_tokens), sum(completion_tokens)
            FROM {_FROM} WHERE {where} GROUP BY 1 ORDER BY 1""",  # noqa: S608
        {**values, "bucket": bucket_s},
    ).fetchall()
    of_latency = {name: _by_bucket(connection, chosen, bucket_s, _LATENCIES[name]) for name in ("ttft", "tpot", "e2e")}
    points = []
    for number, num_requests, num_errors, prompt_tokens, completion_tokens in counts:
        ttft, tpot, e2e = (of_latency[name].get(number, (None, None)) for name in ("ttft", "tpot", "e2e"))
        points.append(
            SeriesPoint(
                float(number * bucket_s), num_requests, num_errors, prompt_tokens or 0, completion_tokens or 0,
                ttft[0], tpot[0], *e2e,
            )
        )  # fmt: skip
    return tuple(points)


def _by_bucket(
    connection: sqlite3.Connection, chosen: RequestFilter, bucket_s: int, value: str
) -> Mapping[int, tuple[float, float]]:
    """Median and 99th percentile in ms of each bucket: the value at that rank, rounded up."""
    where, values = chosen.where()
    rows = connection.execute(
        f"""WITH of AS (SELECT began_unix_ms / (1000 * :bucket) AS bucket, {value} AS value
                        FROM {_FROM} WHERE {where} AND {_SUCCEEDED} AND {value} IS NOT NULL),
                 ranked AS (SELECT bucket, value, row_number() OVER (PARTITION BY bucket ORDER BY value) AS rank
                            FROM of),
                 counted AS (SELECT bucket, count(*) AS count FROM of GROUP BY bucket)
            SELECT bucket, max(CASE WHEN rank = (count + 1) / 2 THEN value END) / 1000.0,
                   max(CASE WHEN rank = count - count / 100 THEN value END) / 1000.0
            FROM ranked JOIN counted USING (bucket)
            WHERE rank = (count + 1) / 2 OR rank = count - count / 100 GROUP BY bucket""",  # noqa: S608
        {**values, "bucket": bucket_s},
    )
    return {bucket: (median, high) for bucket, median, high in rows}


def _latencies(connection: sqlite3.Connection, where: str, values: Mapping[str, object]) -> dict[str, Percentiles]:
    found = {name: _percentiles(connection, where, values, value) for name, value in _LATENCIES.items()}
    return {name: each for name, each in found.items() if each is not None}


def _percentiles(
    connection: sqlite3.Connection, where: str, values: Mapping[str, object], value: str
) -> Percentiles | None:
    chosen = f"FROM {_FROM} WHERE {where} AND {_SUCCEEDED} AND {value} IS NOT NULL"
    count, mean, least, most = connection.execute(
        f"SELECT count(*), avg({value}), min({value}), max({value}) {chosen}",
        values,
    ).fetchone()
    if not count:
        return None
    places = [share * (count - 1) for share in _SHARES]
    ranks = sorted({rank for place in places for rank in (int(place), min(int(place) + 1, count - 1))})
    at = dict(
        connection.execute(
            f"""SELECT rank, value FROM
                    (SELECT {value} AS value, row_number() OVER (ORDER BY {value}) - 1 AS rank {chosen})
                WHERE rank IN ({", ".join(map(str, ranks))})""",  # noqa: S608
            values,
        )
    )
    between = [
        at[int(place)] + (place - int(place)) * (at[min(int(place) + 1, count - 1)] - at[int(place)])
        for place in places
    ]
    return Percentiles(count, *(round(us / 1000, 3) for us in (mean, least, *between, most)))


def _summed(pairs: Iterable[tuple[Key, int]]) -> dict[Key, int]:
    sums: dict[Key, int] = {}
    for key, count in pairs:
        sums[key] = sums.get(key, 0) + count
    return sums


def _seconds(unix_ms: int) -> float:
    return unix_ms / 1000
