"""What keys with names used, summed over the requests of all runs."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass

__all__ = ["KeyUsage", "usage_of", "used_by_key"]

# Runs that were over before are not looked through. Where a worker told no usage, events stand for tokens.
_SINCE = """
FROM run CROSS JOIN request ON request.run = run.number
JOIN request_label AS label ON label.number = request.label
WHERE run.last_seen_unix_s >= :since AND request.key IS NOT NULL AND began_unix_ms >= 1000.0 * :since
AND (:run IS NULL OR run.id = :run)
"""
_SUMS = "COUNT(*), TOTAL(prompt_tokens), TOTAL(coalesce(completion_tokens, num_events))"


@dataclass(frozen=True)
class KeyUsage:
    """One key, model and day.

    Attributes:
        day: as 2026-11-30, in UTC.
        num_refused: requests that ended with an error.
    """

    day: str
    key: str
    model: str
    num_requests: int
    num_refused: int
    prompt_tokens: int
    generated_tokens: int


def used_by_key(connection: sqlite3.Connection, since_unix_s: float) -> dict[str, tuple[int, int, int]]:
    """Requests that went well, prompt and generated tokens by key."""
    rows = connection.execute(
        f"SELECT key, {_SUMS} {_SINCE} AND label.error_code = '' GROUP BY key", {"since": since_unix_s, "run": None}
    )
    return {key: (num_requests, int(prompt), int(generated)) for key, num_requests, prompt, generated in rows}


def usage_of(connection: sqlite3.Connection, since_unix_s: float, run: str | None) -> tuple[KeyUsage, ...]:
    """By day, key and model; the newest day first. `run`: of that one alone, by its id."""
    rows = connection.execute(
        f"""SELECT date(began_unix_ms / 1000, 'unixepoch') AS day, key, label.model, COUNT(*),
                   SUM(label.error_code != ''), TOTAL(prompt_tokens), TOTAL(coalesce(completion_tokens, num_events))
            {_SINCE} GROUP BY day, key, label.model ORDER BY day DESC, key, label.model""",
        {"since": since_unix_s, "run": run},
    )
    return tuple(KeyUsage(*row[:5], *map(int, row[5:])) for row in rows)
