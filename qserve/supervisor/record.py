"""Records a run in the run store: plans, events, measurements, requests; logs go to files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from qserve.errors import UsageError
from qserve.gateway.run_history import RunHistory
from qserve.gateway.telemetry.record import RequestRecord
from qserve.gateway.telemetry.request_rows import row_of
from qserve.planner.plan import Plan
from qserve.runs import RunStore
from qserve.runs.private import make_private
from qserve.runs.residuals import residuals_of
from qserve.runs.retention import Retention
from qserve.runs.writer import NewRun, RequestLabel, RequestRow, RunWriter
from qserve.supervisor.logs import log_event

__all__ = ["Recording", "RunRecord"]

_CUT_OFF = "worker_died"


@dataclass(frozen=True)
class Recording:
    """That a run is written down: what is known of it, in which state folder, and how much is kept there."""

    state_folder: Path
    run: NewRun
    retention: Retention = field(default_factory=Retention)


class RunRecord:
    """The run's folder of logs and its lines in the store. A full disk costs the record, never the service."""

    def __init__(self, folder: Path, recording: Recording | None = None) -> None:
        """Makes `folder` and begins the run's record; None: nothing but logs. Raises UsageError without a folder."""
        try:
            for one in (folder.parent.parent, folder.parent, folder):  # the state folder first
                make_private(one)
        except OSError as error:
            raise UsageError(
                f"the folder for logs, {folder}, can't be created: {error.strerror}. Choose another folder with "
                "--state-dir"
            ) from error
        self.folder = folder
        self._models: dict[str, tuple[str, ...]] = {}
        self._plans: dict[str, Plan] = {}
        self._teaches_nothing: set[str] = set()
        self._writer: RunWriter | None = None
        self.num_cut_off = 0
        """Requests that a worker did not answer to the end; lines of batches, which are asked again, not counted."""
        self.kept = RunHistory(keep=self.request)
        if recording is not None:
            self._writer = RunWriter(recording.state_folder, recording.run, recording.retention)
            self.kept = RunHistory(RunStore(self._writer.path), recording.run.id, self.request)

    def log_file(self, worker: str) -> Path:
        """Where this worker's output goes."""
        return self.folder / f"{worker}.log"

    def plan(self, worker: str, plan: Plan, models: tuple[str, ...] = ()) -> None:
        """Keep the plan that this worker is started from; `models`, its names, stay from call to call."""
        self._models.setdefault(worker, models)
        self._plans[worker] = plan
        if self._writer is not None:
            self._writer.plan(worker, self._models[worker], plan.to_json())

    def teaches_nothing(self, worker: str) -> None:
        """It runs with what its plan knows nothing of: what it holds says nothing about the next plan."""
        self._teaches_nothing.add(worker)

    def event(self, worker: str, event: str, **details: Any) -> None:
        """Something that happened: when, to whom, what, and figures."""
        log_event(worker, event, details)
        if self._writer is not None:
            self._writer.event(worker, event, details)

    def memory(self, worker: str, moment: str, held: dict[str, Any]) -> None:
        """What a worker holds now; `moment` as `MemorySample` has it. Nothing where nothing could be measured."""
        if self._writer is None or not held:
            return
        self._writer.memory(worker, moment, held)
        if moment != "serving" and worker in self._plans and worker not in self._teaches_nothing:
            self._writer.learn(worker, residuals_of(self._plans[worker], held, self._writer.run.id))

    def listens_at(self, url: str) -> None:
        """Keep where the service answers."""
        if self._writer is not None:
            self._writer.listens_at(url)

    def request(self, record: RequestRecord) -> None:
        """Keep a request that is over: those of workers' routes, from clients that may ask."""
        if (row := row_of(record)) is not None:
            self._keep(row)

    def row(self, values: Sequence[Any]) -> None:
        """Keep a request that another process has made a row of, its label first."""
        label, *rest = values
        self._keep(RequestRow(RequestLabel(*label), *rest))

    def _keep(self, row: RequestRow) -> None:
        self.num_cut_off += row.label.error_code == _CUT_OFF and not row.label.is_background
        if self._writer is not None:
            self._writer.request(row)

    def end(self, exit_status: int) -> None:
        """The run is over; waits until that is written, five seconds at most."""
        if self._writer is not None:
            self._writer.close(exit_status)
