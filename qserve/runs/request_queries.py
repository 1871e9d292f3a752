"""Single requests of a run, newest first."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass

from qserve.runs.records import StoredRequest

__all__ = ["RequestFilter", "requests_of"]

_TOKENS = "coalesce(completion_tokens, num_events)"
# No time per token where all tokens were sent at once (`gateway/telemetry/request_rows.py`).
_TPOT_US = f"CASE WHEN {_TOKENS} > 1 AND e2e_us > ttft_us THEN (e2e_us - ttft_us) / ({_TOKENS} - 1.0) END"


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
    """Those that `chosen` lets through, from the newest."""
    where, values = chosen.where()
    # CROSS JOIN: the run's requests first, in their order; SQLite would begin with the labels and sort at the end.
    rows = connection.execute(
        f"""SELECT request_id, began_unix_ms / 1000.0, queued_us / 1000.0, ttft_us / 1000.0, {_TPOT_US} / 1000.0,
                   e2e_us / 1000.0, prompt_tokens, completion_tokens, num_events,
                   method, route, model, worker, status, error_code, is_background, client_left
            FROM request CROSS JOIN request_label AS label ON label.number = request.label
            WHERE {where} ORDER BY request.number DESC LIMIT :limit OFFSET :offset""",  # noqa: S608
        {**values, "limit": limit, "offset": offset},
    )
    return tuple(StoredRequest(*(*row[:-2], bool(row[-2]), bool(row[-1]))) for row in rows)
