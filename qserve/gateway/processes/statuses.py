"""A worker's status as JSON for other processes: at first, and whenever the supervisor has changed it."""

from __future__ import annotations

from typing import Any

from qserve.worker.base import WorkerFacts, WorkerState, WorkerStatus

__all__ = ["changing", "document_of", "status_of", "update"]


def changing(status: WorkerStatus) -> tuple[Any, ...]:
    """What the supervisor changes, for comparison."""
    return status.facts, status.state, status.detail, status.refusal, status.num_restarts, status.start_phases_s


def document_of(status: WorkerStatus) -> dict[str, Any]:
    """The whole status, without the load."""
    return {
        "facts": status.facts.to_json(),
        "state": status.state.value,
        "detail": status.detail,
        "refusal": status.refusal,
        "num_restarts": status.num_restarts,
        "start_phases_s": status.start_phases_s,
        "has_memory": status.memory is not None,
        "has_latency": status.latency is not None,
    }


def status_of(document: dict[str, Any]) -> WorkerStatus:
    """The status from `document_of`; the caller sets `memory` and `latency`."""
    status = WorkerStatus(WorkerFacts.from_json(document["facts"]))
    update(status, document)
    return status


def update(status: WorkerStatus, document: dict[str, Any]) -> None:
    """Apply what has changed, the state last: a worker that is ready must be complete."""
    if document["facts"] != status.facts.to_json():
        status.facts = WorkerFacts.from_json(document["facts"])
    status.detail, status.num_restarts = document["detail"], document["num_restarts"]
    status.refusal = document["refusal"]
    status.start_phases_s = document["start_phases_s"]
    status.state = WorkerState(document["state"])
