"""`RunReport`: all facts of a report, read from the store at once."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from qserve.runs import (
    MemorySample,
    RunStore,
    StoredDocument,
    StoredEvent,
    StoredRun,
    StoredWorker,
    Traffic,
    WorkerTraffic,
)
from qserve.runs.key_usage import KeyUsage

__all__ = ["RunReport", "read_report"]

_MOST_POINTS = 120
_BUCKETS_S = (5, 10, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 21600, 86400)
_MOST_RESULTS = 8
_MARK = "activations_bytes"
_LIVE = ("work", "latency")
"""Events of which the last one counts: what workers report of themselves."""


@dataclass(frozen=True)
class RunReport:
    """The facts of one run.

    Attributes:
        work: what workers reported of their own work (GET /v1/qserve/report of a reward model), by worker.
        latency: planned and measured latency of its requests, by worker.
        evals, benches, comparisons: oldest first. A comparison starts servers of its own, so it is here for its model.
        keys: what its keys with names used.
        made_unix_s: when these facts were read.
    """

    run: StoredRun
    memory: tuple[MemorySample, ...] = ()
    events: tuple[StoredEvent, ...] = ()
    traffic: Traffic = field(default_factory=lambda: Traffic((), ()))
    work: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    latency: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    evals: tuple[StoredDocument, ...] = ()
    benches: tuple[StoredDocument, ...] = ()
    comparisons: tuple[StoredDocument, ...] = ()
    trainings: tuple[StoredDocument, ...] = ()
    keys: tuple[KeyUsage, ...] = ()
    made_unix_s: float = field(default_factory=time.time)

    def traffic_of(self, worker: StoredWorker) -> WorkerTraffic | None:
        """None where no request reached it."""
        return next((one for one in self.traffic.workers if one.worker == worker.name), None)

    def measured(self, worker: StoredWorker) -> MemorySample | None:
        """Its newest account of its memory; None where there is none."""
        return next((one for one in reversed(self.memory) if one.worker == worker.name and one.terms), None)

    def held(self, worker: StoredWorker) -> dict[str, float]:
        """What it holds by that account; of activations the highest mark of all of them, which is what is planned."""
        sample = self.measured(worker)
        terms = dict(sample.terms) if sample else {}
        marks = [one.terms.get(_MARK, 0) for one in self.memory if one.worker == worker.name]
        return {**terms, _MARK: max(marks)} if _MARK in terms else terms

    def sources(self, worker: StoredWorker) -> Mapping[str, str]:
        """How each term was measured."""
        documents = [one.document for one in reversed(self.memory) if one.worker == worker.name and one.document]
        sources: Mapping[str, str] = documents[0].get("sources", {}) if documents else {}
        return sources


def read_report(store: RunStore, run: StoredRun, live: Mapping[str, Mapping[str, Any]] | None = None) -> RunReport:
    """The facts of `run`. `live`: by worker its current `work` and `latency`, in place of what was stored last.

    A million requests take about three seconds. Raises StoreUnusable.
    """
    events = store.events(run)
    last = {kind: {one.worker: one.details for one in events if one.event == kind} for kind in _LIVE}
    now = {kind: {name: of[kind] for name, of in (live or {}).items() if of.get(kind)} for kind in _LIVE}
    return RunReport(
        run,
        store.memory(run),
        tuple(event for event in events if event.event not in _LIVE),
        store.traffic(run, bucket_s=_bucket_s(run.duration_s)),
        {**last["work"], **now["work"]},
        {**last["latency"], **now["latency"]},
        store.evals(run)[-_MOST_RESULTS:],
        store.benches(run)[-_MOST_RESULTS:],
        _comparisons(store, run)[-_MOST_RESULTS:],
        store.trainings(run),
        store.usage(run=run),
    )


def _bucket_s(duration_s: float) -> int:
    return next((one for one in _BUCKETS_S if one * _MOST_POINTS >= duration_s), _BUCKETS_S[-1])


def _comparisons(store: RunStore, run: StoredRun) -> tuple[StoredDocument, ...]:
    models = {worker.plan.get("model", {}).get("id") for worker in run.workers}
    return tuple(one for one in store.comparisons() if one.run == run.id or (one.run is None and _model(one) in models))


def _model(comparison: StoredDocument) -> str:
    candidates = comparison.document.get("candidates") or [{}]
    return str(candidates[0].get("about", {}).get("model_id", ""))
