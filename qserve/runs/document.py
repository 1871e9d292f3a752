"""The store as JSON: what GET /v1/qserve/runs answers, and `qserve runs --json` prints."""

from __future__ import annotations

from typing import Any

from qserve.runs.records import StoredRun
from qserve.runs.store import RunStore

__all__ = ["run_document", "runs_document", "trainings_document"]

_MOST_EVENTS = 1000


def runs_document(store: RunStore, limit: int | None = None) -> dict[str, Any]:
    """`{"object": "list", "data": […]}`, newest first. Plans are left out; the run's own document has them."""
    return {"object": "list", "data": [_brief(run) for run in store.runs(limit)]}


def trainings_document(store: RunStore) -> dict[str, Any]:
    """The same shape for training runs; `state_dir` is the --state-dir by which another comes into this list."""
    data = [one.to_json() for one in store.training_list()]
    return {"object": "list", "state_dir": str(store.path.parent.parent), "data": data}


def run_document(store: RunStore, run: StoredRun) -> dict[str, Any]:
    """All that is known of a run but its single requests: their groups, and of each worker percentiles and series.

    `events` are the last thousand.
    """
    return {
        "object": "run",
        **_timed(run),
        "memory": [one.to_json() for one in store.memory(run)],
        "events": [one.to_json() for one in store.events(run)[-_MOST_EVENTS:]],
        "requests": store.traffic(run).to_json(),
        "evals": [one.to_json() for one in store.evals(run)],
        "benches": [one.to_json() for one in store.benches(run)],
        "comparisons": [one.to_json() for one in store.comparisons(run)],
        "trainings": [one.to_json() for one in store.trainings(run)],
    }


def _timed(run: StoredRun) -> dict[str, Any]:
    return {**run.to_json(), "duration_s": round(run.duration_s, 3)}


def _brief(run: StoredRun) -> dict[str, Any]:
    workers = [
        {
            "name": worker.name,
            "models": worker.models,
            "engine": worker.plan.get("engine"),
            "engine_version": worker.plan.get("engine_version"),
            "quant": worker.plan.get("quant", {}).get("scheme"),
            "num_restarts": worker.num_restarts,
        }
        for worker in run.workers
    ]
    return {**_timed(run), "workers": workers}
