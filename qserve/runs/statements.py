"""SQL statements that write to the store; ?1 is the run's number, values follow."""

from __future__ import annotations

__all__ = ["COUNT", "INSERT_EVENT", "INSERT_MEMORY", "INSERT_PLAN", "INSERT_REQUESTS", "INSERT_RUN", "REPLACE_RESIDUAL"]

INSERT_RUN = """INSERT INTO run (id, started_unix_s, last_seen_unix_s, host, pid, process_start, command, versions,
                                  hardware, folder, started_by) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"""
INSERT_PLAN = "INSERT INTO plan (run, worker, unix_s, models, document) VALUES (?, ?, ?, ?, ?)"
INSERT_MEMORY = "INSERT INTO memory (run, worker, unix_s, moment, document) VALUES (?, ?, ?, ?, ?)"
INSERT_EVENT = "INSERT INTO event (run, unix_s, worker, event, details) VALUES (?, ?, ?, ?, ?)"
# A fact's first value is the run's number; this one has no use for it.
REPLACE_RESIDUAL = """INSERT OR REPLACE INTO residual
    (run_id, worker, term, unix_s, engine, engine_version, device, on_cpu, shape, step, planned, measured)
    SELECT ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13 WHERE ?1"""
# One step for a whole batch: Python's lock is free while SQLite works, and is not fought for at every row.
INSERT_REQUESTS = """
INSERT INTO request (run, number, label, began_unix_ms, e2e_us, queued_us, ttft_us, prompt_tokens, completion_tokens,
                     num_events, request_id, key)
SELECT ?1, ?2 + key, json_extract(value, '$[0]'), json_extract(value, '$[1]'), json_extract(value, '$[2]'),
       json_extract(value, '$[3]'), json_extract(value, '$[4]'), json_extract(value, '$[5]'),
       json_extract(value, '$[6]'), json_extract(value, '$[7]'), json_extract(value, '$[8]'),
       json_extract(value, '$[9]')
FROM json_each(?3)"""
COUNT = """UPDATE run SET num_requests = num_requests + ?2, num_errors = num_errors + ?3, num_lost = ?4,
                           last_seen_unix_s = ?5 WHERE number = ?1"""
