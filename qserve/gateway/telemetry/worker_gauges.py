"""Gauges of each worker at scrape time: state, load, planned and measured memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from qserve.planner.term import COLUMNS
from qserve.worker.base import WorkerState, WorkerStatus

__all__ = ["WorkerGauges", "WorkerView"]


class WorkerView(Protocol):
    """A worker to expose. `measured`: the last GET /v1/qserve/memory, empty before the first."""

    name: str
    status: WorkerStatus
    measured: Mapping[str, Any]

    @property
    def is_ready(self) -> bool: ...
    @property
    def num_running_requests(self) -> int: ...
    @property
    def num_running_sequences(self) -> int: ...
    @property
    def num_waiting(self) -> int: ...


_READINGS: Mapping[str, tuple[str, Callable[[WorkerView], float]]] = {
    "worker_ready": ("1 if the worker takes requests", lambda worker: worker.is_ready),
    "requests_running": ("Requests at the worker", lambda worker: worker.num_running_requests),
    "sequences_running": ("Sequences at the worker", lambda worker: worker.num_running_sequences),
    "requests_waiting": ("Requests in the queue", lambda worker: worker.num_waiting),
    "outstanding_tokens": (
        "Tokens that the worker has yet to read and write, as estimated for the choice of a replica",
        lambda worker: worker.status.load.num_outstanding_tokens,
    ),
    "prefix_blocks": (
        "Blocks of 128 bytes of prompts that the worker is known to have seen",
        lambda worker: worker.status.load.num_prefix_blocks,
    ),
}


_TURNS = {
    "model_loads": ("Times that the model was loaded into memory", "num_loads"),
    "model_served_seconds": ("Time that the model was in memory with requests", "served_s"),
    "model_waited_seconds": ("Time that requests waited for the model to be loaded, one wait a load", "waited_s"),
}


class WorkerGauges(Collector):
    """A Prometheus collector that reads the workers at scrape time."""

    def __init__(self, workers: Sequence[WorkerView]) -> None:
        self._workers = workers

    def collect(self) -> Iterable[Metric]:
        """The metric families; empty without workers."""
        for name, (text, read) in _READINGS.items():
            rows = (((worker.name,), float(read(worker))) for worker in self._workers)
            yield _gauge(name, text, ("worker",), rows)
        states = (
            ((worker.name, state.value), float(worker.status.state is state))
            for worker in self._workers
            for state in WorkerState
        )
        yield _gauge("worker_state", "1 for the state that the worker is in", ("worker", "state"), states)
        restarts = CounterMetricFamily("qserve_gateway_worker_restarts", "Restarts of the worker", labels=["worker"])
        for worker in self._workers:
            restarts.add_metric([worker.name], worker.status.num_restarts)
        yield restarts
        matched = CounterMetricFamily(
            "qserve_gateway_prefix_matched_tokens",
            "Prompt tokens that the worker is known to have seen",
            labels=["worker"],
        )
        for worker in self._workers:
            matched.add_metric([worker.name], worker.status.load.num_matched_tokens)
        yield matched
        yield from self._turns()
        yield from self._memory()

    def _turns(self) -> Iterator[Metric]:
        """Of models that are loaded on demand; no rows for others."""
        for name, (text, field) in _TURNS.items():
            family = CounterMetricFamily(f"qserve_gateway_{name}", text, labels=["worker"])
            for worker in self._workers:
                if worker.status.turns is not None:
                    family.add_metric([worker.name], getattr(worker.status.turns, field))
            yield family

    def _memory(self) -> Iterator[Metric]:
        planned = (row for worker in self._workers for row in _planned(worker))
        yield _gauge("memory_planned_bytes", "Planned, per term and device", ("worker", "device", "term"), planned)
        measured = (row for worker in self._workers for row in _measured(worker))
        yield _gauge("memory_measured_bytes", "Measured, per term over all devices", ("worker", "term"), measured)
        resident = (
            ((worker.name,), held) for worker in self._workers if (held := worker.measured.get("resident_bytes"))
        )
        yield _gauge("worker_resident_memory_bytes", "Resident memory of the worker's processes", ("worker",), resident)


def _gauge(name: str, text: str, labels: Sequence[str], rows: Iterable[tuple[Sequence[str], float]]) -> Metric:
    family = GaugeMetricFamily(f"qserve_gateway_{name}", text, labels=labels)
    for values, reading in rows:
        family.add_metric(values, reading)
    return family


def _planned(worker: WorkerView) -> Iterator[tuple[Sequence[str], float]]:
    """Devices by index in the plan: two cards of one kind have the same name."""
    for index, device in enumerate((worker.status.facts.plan or {}).get("devices", ())):
        for term in COLUMNS:
            yield (worker.name, str(index), term), device[f"{term}_bytes"]


def _measured(worker: WorkerView) -> Iterator[tuple[Sequence[str], float]]:
    """Terms without a measurement are left out, not exposed as 0."""
    for term in COLUMNS:
        if (num_bytes := worker.measured.get(f"{term}_bytes")) is not None:
            yield (worker.name, term), num_bytes
