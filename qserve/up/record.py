"""What is kept of a run beside the workers' logs: the plan, what happened, what was measured. One folder per run."""

from __future__ import annotations

import json
import logging
import time
from pathlib import Path
from typing import Any

from qserve.errors import UsageError
from qserve.planner.plan import Plan
from qserve.up.logs import log_event

__all__ = ["RunRecord"]

_log = logging.getLogger("qserve.up")


class RunRecord:
    """`plan-WORKER.json` and `events.jsonl` in the run's folder. A full disk costs the record, never the service."""

    def __init__(self, folder: Path) -> None:
        """Makes `folder`. Raises UsageError where that is not allowed."""
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(
                f"the folder for logs, {folder}, can't be made: {error.strerror}. Choose a place of yours with "
                "--state-dir"
            ) from error
        self.folder = folder
        self._warned = False

    def log_file(self, worker: str) -> Path:
        """Where this worker's output goes."""
        return self.folder / f"{worker}.log"

    def plan(self, worker: str, plan: Plan) -> None:
        """Keep the plan that this worker is started from; a changed one replaces it."""
        self._write(f"plan-{worker}.json", "w", json.dumps(plan.to_json(), indent=1, ensure_ascii=False))

    def event(self, worker: str, event: str, **details: Any) -> None:
        """One line: when, who, what, and figures."""
        log_event(worker, event, details)
        line = {"unix_s": round(time.time(), 3), "worker": worker, "event": event, **details}
        self._write("events.jsonl", "a", json.dumps(line, ensure_ascii=False, default=str) + "\n")

    def _write(self, name: str, mode: str, text: str) -> None:
        try:
            with (self.folder / name).open(mode) as file:
                file.write(text)
        except OSError as error:
            if not self._warned:
                _log.warning("the run's record in %s can't be written (%s); serving goes on", self.folder, error)
            self._warned = True
