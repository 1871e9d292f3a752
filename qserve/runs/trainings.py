"""Training runs in the store: one result a run, replaced while it goes on, and the list of them for who follows one."""

from __future__ import annotations

import sqlite3

__all__ = ["LISTED", "REPLACE_TRAINING", "listed"]

# As a fact of runs/writer.py: ?1 is the run's number, then its id, the time, a name, the document.
REPLACE_TRAINING = """INSERT OR REPLACE INTO result (number, kind, unix_s, run_id, name, document)
    SELECT (SELECT number FROM result WHERE kind = 'train' AND run_id = ?2), 'train', ?3, ?2, ?4, ?5 WHERE ?1"""
LISTED = 50
"""The newest runs that a list has."""
# Without the documents, which are large: whoever follows a run asks again and again whether there is something new.
_LIST = """SELECT run.id, run.started_unix_s, run.last_seen_unix_s, run.ended_unix_s, run.exit_status, run.host,
                  run.pid, run.process_start, result.name, result.unix_s
    FROM run LEFT JOIN result ON result.run_id = run.id AND result.kind = 'train'
    WHERE run.started_by = 'train' ORDER BY run.started_unix_s DESC, run.number DESC LIMIT ?"""


def listed(connection: sqlite3.Connection) -> list[tuple[object, ...]]:
    """A row a run, newest first, with the columns of the query."""
    return connection.execute(_LIST, [LISTED]).fetchall()
