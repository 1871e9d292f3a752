"""The store's schema as migrations; `PRAGMA user_version` counts the applied ones.

A step that was released is never changed; a new one is added at the end. Times of day are seconds since 1970 (REAL) or
milliseconds (INTEGER), durations microseconds. Documents are JSON text.
"""

from __future__ import annotations

__all__ = ["MIGRATIONS"]

# Requests are clustered by run, so that one run's are read in one sweep without an index beside them; what repeats from
# request to request stands once, in request_label. A million of them take about 90 MB.
_FIRST = """
CREATE TABLE run (
    number INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    started_unix_s REAL NOT NULL,
    last_seen_unix_s REAL NOT NULL,
    ended_unix_s REAL,
    exit_status INTEGER,
    host TEXT NOT NULL,
    pid INTEGER NOT NULL,
    process_start TEXT NOT NULL,
    command TEXT NOT NULL,
    versions TEXT NOT NULL,
    hardware TEXT NOT NULL,
    folder TEXT NOT NULL,
    url TEXT,
    num_requests INTEGER NOT NULL DEFAULT 0,
    num_errors INTEGER NOT NULL DEFAULT 0,
    num_lost INTEGER NOT NULL DEFAULT 0
);
CREATE TABLE plan (
    run INTEGER NOT NULL REFERENCES run ON DELETE CASCADE,
    worker TEXT NOT NULL,
    unix_s REAL NOT NULL,
    models TEXT NOT NULL,
    document TEXT NOT NULL
);
CREATE INDEX plan_of_run ON plan (run);
CREATE TABLE memory (
    run INTEGER NOT NULL REFERENCES run ON DELETE CASCADE,
    worker TEXT NOT NULL,
    unix_s REAL NOT NULL,
    moment TEXT NOT NULL,
    document TEXT NOT NULL
);
CREATE INDEX memory_of_run ON memory (run, unix_s);
CREATE TABLE event (
    run INTEGER NOT NULL REFERENCES run ON DELETE CASCADE,
    unix_s REAL NOT NULL,
    worker TEXT NOT NULL,
    event TEXT NOT NULL,
    details TEXT NOT NULL
);
CREATE INDEX event_of_run ON event (run, unix_s);
CREATE TABLE request_label (
    number INTEGER PRIMARY KEY,
    method TEXT NOT NULL,
    route TEXT NOT NULL,
    model TEXT NOT NULL,
    worker TEXT NOT NULL,
    status INTEGER NOT NULL,
    error_code TEXT NOT NULL,
    is_background INTEGER NOT NULL,
    client_left INTEGER NOT NULL,
    UNIQUE (method, route, model, worker, status, error_code, is_background, client_left)
);
CREATE TABLE request (
    run INTEGER NOT NULL REFERENCES run ON DELETE CASCADE,
    number INTEGER NOT NULL,
    label INTEGER NOT NULL REFERENCES request_label,
    began_unix_ms INTEGER NOT NULL,
    e2e_us INTEGER NOT NULL,
    queued_us INTEGER,
    ttft_us INTEGER,
    prompt_tokens INTEGER,
    completion_tokens INTEGER,
    num_events INTEGER NOT NULL,
    request_id TEXT NOT NULL,
    PRIMARY KEY (run, number)
) WITHOUT ROWID;
CREATE TABLE result (
    number INTEGER PRIMARY KEY,
    kind TEXT NOT NULL,
    unix_s REAL NOT NULL,
    run_id TEXT,
    name TEXT NOT NULL,
    document TEXT NOT NULL
);
CREATE INDEX result_of_run ON result (run_id, kind);
"""

# What plans may learn: one row for each term that a worker of a run was measured on; a later sample replaces it.
_RESIDUALS = """
CREATE TABLE residual (
    run_id TEXT NOT NULL,
    worker TEXT NOT NULL,
    term TEXT NOT NULL,
    unix_s REAL NOT NULL,
    engine TEXT NOT NULL,
    engine_version TEXT NOT NULL,
    device TEXT NOT NULL,
    on_cpu INTEGER NOT NULL,
    shape TEXT NOT NULL,
    step TEXT NOT NULL,
    planned INTEGER NOT NULL,
    measured INTEGER NOT NULL,
    PRIMARY KEY (run_id, worker, term)
) WITHOUT ROWID;
"""

# Which command started the server for itself; those of `qserve compare` are not what a user means by the newest run.
_STARTED_BY = "ALTER TABLE run ADD COLUMN started_by TEXT NOT NULL DEFAULT '';"

# The name of the key that asked, where keys have names (qserve/gateway/keys); never the key.
_KEY = "ALTER TABLE request ADD COLUMN key TEXT;"

MIGRATIONS: tuple[str, ...] = (_FIRST, _RESIDUALS, _STARTED_BY, _KEY)
