"""Launches qserve's own workers: configured by a file, read by lines on standard error (`qserve.worker.process`)."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from qserve.errors import BrokenCheckpoint, DoesNotFit, QserveError, UsageError, WorkerFailed
from qserve.planner.plan import Plan
from qserve.worker.base import WorkerFacts
from qserve.worker.heartbeat import Progress, heartbeat_file, read_heartbeat
from qserve.worker.launch import Retry, SendRequest
from qserve.worker.limits import EngineLimits
from qserve.worker.process import FAILURE, NOTE, PHASE, WorkerSpec, death_of
from qserve.worker.process_tree import tree_of

__all__ = ["ModuleLaunch", "ModuleProcess"]

_ERROR_OF_STATUS: dict[int, type[QserveError]] = {2: BrokenCheckpoint, 3: DoesNotFit}


class ModuleProcess:
    """`python -m MODULE SPEC.json`, whatever it does there."""

    plan: Plan | None = None
    measures_free_memory = False
    _beats: Path | None = None

    def __init__(self, module: str, document: Mapping[str, Any], spec_file: Path) -> None:
        """Writes `document` to `spec_file`, which only this user can read."""
        self.command: tuple[str, ...] = (sys.executable, "-m", module, str(spec_file))
        self.environment: Mapping[str, str] = _environment()
        self.notes: list[str] = []
        self._said = self._last_line = ""
        with os.fdopen(os.open(spec_file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            json.dump(document, file)

    def begin(self) -> None:
        self.notes.clear()
        self._said = self._last_line = ""

    def hear(self, line: str) -> str | None:
        self._last_line = line or self._last_line
        if line.startswith(FAILURE):
            self._said = line.removeprefix(FAILURE)
        elif line.startswith(NOTE):
            self.notes.append(line.removeprefix(NOTE))
        return line.removeprefix(PHASE) if line.startswith(PHASE) else None

    async def is_ready(self, send: SendRequest) -> bool:
        return (await send("GET", "/health", b""))[0] == 200

    async def is_well(self, send: SendRequest) -> bool | None:
        status, _ = await send("GET", "/health", b"")
        return None if status == 0 else status == 200

    async def introduce(self, send: SendRequest, facts: WorkerFacts) -> WorkerFacts:
        """The limits of the pool that was made; gateway and worker know the same schemas."""
        status, body = await send("GET", "/v1/qserve/limits", b"")
        if status != 200:  # a reward worker has none beside its plan's
            return facts
        return replace(facts, **asdict(EngineLimits(**json.loads(body))))

    def failure(self, returncode: int, *, is_outside: bool = False) -> QserveError:
        """Its own words, as the kind of error that its status names; without any, how it ended and its last line."""
        if not self._said:
            return WorkerFailed(f"{death_of(returncode, is_outside=is_outside)}. Its last line: {self._last_line!r}")
        return _ERROR_OF_STATUS.get(returncode, WorkerFailed)(self._said)

    def retry(self) -> Retry | None:
        return None

    async def progress(self, send: SendRequest) -> Progress | None:
        return None if self._beats is None else await asyncio.to_thread(read_heartbeat, self._beats)

    def computing(self, pid: int) -> list[int]:
        return tree_of(pid)

    def retry_stuck(self) -> Retry | None:
        return None

    async def memory(self, send: SendRequest, pid: int) -> dict[str, Any]:
        status, body = await send("GET", "/v1/qserve/memory", b"")
        if status != 200:
            why = f"status {status}" if status else "it can't be reached"
            raise UsageError(f"the worker did not report its memory ({why})")
        document: dict[str, Any] = json.loads(body)
        return document


class ModuleLaunch(ModuleProcess):
    """The transformers worker and the reward worker."""

    def __init__(self, module: str, spec: WorkerSpec, spec_file: Path, **beside: Any) -> None:
        """`beside`: what this module wants to be told besides `spec`."""
        super().__init__(module, {**spec.to_json(), **beside}, spec_file)
        self.plan = spec.plan
        self._beats = heartbeat_file(spec.socket)


def _environment() -> dict[str, str]:
    """The child's environment. It never asks a hub: what it loads is on disk by then."""
    return {
        **os.environ,
        "HF_HUB_OFFLINE": "1",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "PYTHONUNBUFFERED": "1",
    }
