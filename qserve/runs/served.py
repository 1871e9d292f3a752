"""Requests of a run with known times and lengths, for the comparison with the plan."""

from __future__ import annotations

from qserve.planner.speed.served import ServedRequest
from qserve.runs.records import StoredRun
from qserve.runs.store import RunStore

__all__ = ["others_share", "served_requests"]


def served_requests(store: RunStore, run: StoredRun, worker: str, most: int) -> list[ServedRequest]:
    """The last ones that were streamed to their end, and whose worker told the tokens (`include_usage`)."""
    return [
        ServedRequest(one.began_unix_s, one.prompt_tokens, one.completion_tokens, one.ttft_ms / 1000, one.e2e_ms / 1000)
        for one in store.requests(run, limit=most, worker=worker)
        if one.ttft_ms and one.prompt_tokens and one.completion_tokens and not one.error_code and not one.client_left
    ]


def others_share(store: RunStore, run: StoredRun, worker: str) -> float:
    """Of the machine's processors, that other programs took while these were answered, as the run last noted it.

    0.0 where it noted nothing: it was ended before it could, or is of a release that did not.
    """
    noted = [one.details for one in store.events(run) if (one.worker, one.event) == (worker, "latency")]
    share = noted[-1].get("others_share") if noted else None
    return float(share) if isinstance(share, (int, float)) else 0.0
