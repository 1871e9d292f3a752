"""The run store: plans, events, requests and measurements of every run, in one SQLite file in the state folder.

Reading, from the command line, the gateway, a report:

    store = RunStore.open(state_folder(None))  # qserve/state_folder.py; the file is made where there is none
    store.runs(limit=20)                                   # newest first
    run = store.run()                                      # the newest; store.run("20261121-2240") by id or prefix
    store.memory(run), store.events(run)
    store.requests(run, limit=100), store.traffic(run)     # single ones; percentiles, series, groups of all
    store.traffic(run)                                     # the same by worker in one sweep, with histograms
    store.evals(run), store.benches(run), store.comparisons(run)

Writing a result beside it (`qserve eval`, `qserve bench`, `qserve compare`). `document` is any JSON object, `name` what
a list shows of it; `run` is a StoredRun, an id (GET /v1/qserve/report tells it as `run`), or None where it belongs to
no run of this machine. Each returns what was stored:

    store.add_eval(document, name="gsm8k", run=run_id)     # -> StoredDocument
    store.add_bench(document, name="64 streams", run=run_id)
    store.add_comparison(document, name="bf16, nf4", run=None)

A result is worth more than its record: who calls them catches `StoreUnusable`, warns, and goes on.

`schema` what the file holds · `database` opening it, also when it is old, broken or not ours · `records` what is read ·
`store` and `request_queries` the reading · `writer` a thread of its own that serving processes write through ·
`retention` what goes when there is too much.
"""

from qserve.runs.database import StoreUnusable
from qserve.runs.records import (
    Histogram,
    MemorySample,
    Percentiles,
    RequestGroup,
    RequestSummary,
    SeriesPoint,
    StoredDocument,
    StoredEvent,
    StoredRequest,
    StoredRun,
    StoredWorker,
    Traffic,
    WorkerTraffic,
)
from qserve.runs.store import RunStore

__all__ = [
    "Histogram",
    "MemorySample",
    "Percentiles",
    "RequestGroup",
    "RequestSummary",
    "RunStore",
    "SeriesPoint",
    "StoreUnusable",
    "StoredDocument",
    "StoredEvent",
    "StoredRequest",
    "StoredRun",
    "StoredWorker",
    "Traffic",
    "WorkerTraffic",
]
