"""One supervised worker: a child process that is started, watched, restarted with growing pauses, and ended with us."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

from qserve.engine.base import WorkerEndpoint, WorkerState
from qserve.engine.process import FAILURE, PHASE, WorkerSpec
from qserve.errors import BrokenCheckpoint, DoesNotFit, UsageError, WorkerFailed
from qserve.gateway.client import ConnectionBroke, Unreachable, WorkerClient

__all__ = ["SupervisedWorker"]

_log = logging.getLogger("qserve.up")
_FIRST_PAUSE_S = 0.25
_LONGEST_PAUSE_S = 30.0
# A worker that ran so long was well: its next fall starts the pauses anew.
_WELL_AFTER_S = 60.0
_MAX_FAILED_STARTS = 10
_HEALTH_INTERVAL_S = 5.0
_HEALTH_TIMEOUT_S = 30.0
_MISSED_HEALTH_CHECKS = 3
_TERM_GRACE_S = 2.0
_ERROR_OF_STATUS = {2: BrokenCheckpoint, 3: DoesNotFit}


class SupervisedWorker:
    """Keeps one worker alive and its `endpoint` true."""

    def __init__(
        self,
        endpoint: WorkerEndpoint,
        spec: WorkerSpec,
        spec_file: Path,
        log_file: Path,
        on_phase: Callable[[str], None],
    ) -> None:
        """Nothing is started yet.

        Args:
            endpoint: its state and detail are written here for the gateway.
            spec: what the worker is told; written to `spec_file`, which only this user can read.
            spec_file: in a private folder.
            log_file: where the worker's output goes.
            on_phase: hears what a start is at.

        """
        self.endpoint = endpoint
        self.num_restarts = 0
        self._spec_file = spec_file
        self._log_file = log_file
        self._on_phase = on_phase
        self._process: asyncio.subprocess.Process | None = None
        self._client = WorkerClient(endpoint.address, endpoint.key, connect_timeout_s=5.0)
        self._failure = ""
        self._last_line = ""
        with os.fdopen(os.open(spec_file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            json.dump(spec.to_json(), file)

    @property
    def pid(self) -> int | None:
        """The child's process id while there is one."""
        return None if self._process is None else self._process.pid

    async def start(self) -> None:
        """Start the worker and return when it is ready. Raises with the worker's own reason if it ends before that."""
        await self._spawn()
        await self._until_ready()

    async def watch(self) -> None:
        """Stay with the worker: restart it when it ends or hangs. Raises WorkerFailed when restarts don't help."""
        pause_s = _FIRST_PAUSE_S
        while True:
            ready_at = time.monotonic()
            reason = await self._until_down()
            if time.monotonic() - ready_at > _WELL_AFTER_S:
                pause_s = _FIRST_PAUSE_S
            pause_s = await self._restart(reason, pause_s)

    async def _restart(self, reason: str, pause_s: float) -> float:
        """Try until it is ready again; returns the pause that the next fall begins with."""
        for _ in range(_MAX_FAILED_STARTS):
            self.num_restarts += 1
            self._set(WorkerState.RESTARTING, f"{reason}; it is being restarted")
            _log.warning("%s worker: %s; restarting in %.2f s", self.endpoint.name, reason, pause_s)
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
            try:
                await self.start()
            except (WorkerFailed, UsageError, DoesNotFit) as error:
                reason = str(error)
            else:
                _log.warning("%s worker: ready again", self.endpoint.name)
                return pause_s
        self._set(WorkerState.FAILED, reason)
        raise WorkerFailed(f"the {self.endpoint.name} worker failed to start {_MAX_FAILED_STARTS} times: {reason}")

    async def stop(self) -> None:
        """End the worker: politely, then not."""
        process = self._process
        if process is None or process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        try:
            await asyncio.wait_for(process.wait(), _TERM_GRACE_S)
        except TimeoutError:
            self._kill_group()
            await process.wait()
        self._client.close()

    async def get_json(self, path: str) -> dict[str, object]:
        """A small document of the worker's own."""
        async with self._client.request("GET", path, "supervisor") as reply:
            document: dict[str, object] = json.loads(await reply.read())
        return document

    async def _spawn(self) -> None:
        self._failure = self._last_line = ""
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "qserve.engine.transformers",
            str(self._spec_file),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            # A session of its own: Ctrl-C in the terminal reaches us alone, and we drain.
            start_new_session=True,
            env=_environment(),
            limit=1024 * 1024,
        )
        self._log_task = asyncio.create_task(self._capture(self._process))

    async def _capture(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        with self._log_file.open("ab") as log:
            async for line in process.stdout:
                # A full disk loses log lines and nothing else.
                with contextlib.suppress(OSError):
                    log.write(line)
                    log.flush()
                text = line.decode(errors="replace").strip()
                self._last_line = text or self._last_line
                if text.startswith(PHASE):
                    self._on_phase(text.removeprefix(PHASE))
                elif text.startswith(FAILURE):
                    self._failure = text.removeprefix(FAILURE)

    async def _until_ready(self) -> None:
        process = self._process
        assert process is not None
        while process.returncode is None:
            if await self._is_healthy(timeout_s=2.0):
                self._set(WorkerState.READY, "")
                return
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), 0.1)
        await self._log_task
        kind = _ERROR_OF_STATUS.get(process.returncode, WorkerFailed) if self._failure else WorkerFailed
        said = self._failure or f"{_death(process.returncode)} while starting. Its last word: {self._last_line!r}"
        raise kind(f"{said} (log: {self._log_file})" if not self._failure else said)

    async def _until_down(self) -> str:
        """The reason, once the worker has ended or was ended because it hung."""
        process = self._process
        assert process is not None
        missed = 0
        while process.returncode is None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), _HEALTH_INTERVAL_S)
                break
            missed = 0 if await self._is_healthy(_HEALTH_TIMEOUT_S) else missed + 1
            if missed >= _MISSED_HEALTH_CHECKS:
                self._kill_group()
                await process.wait()
                return f"the worker did not answer {missed} health checks of {_HEALTH_TIMEOUT_S:.0f} s and was killed"
        self._set(WorkerState.RESTARTING, "the worker ended")
        # What it started itself must not outlive it.
        self._kill_group()
        await self._log_task
        return self._failure or _death(process.returncode)

    async def _is_healthy(self, timeout_s: float) -> bool:
        try:
            async with asyncio.timeout(timeout_s), self._client.request("GET", "/health", "supervisor") as reply:
                await reply.read()
                return reply.status == 200
        except (Unreachable, ConnectionBroke, TimeoutError, OSError):
            return False

    def _set(self, state: WorkerState, detail: str) -> None:
        self.endpoint.detail = detail
        self.endpoint.state = state

    def _kill_group(self) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)


def _death(returncode: int | None) -> str:
    if returncode is not None and returncode < 0:
        name = signal.Signals(-returncode).name
        hint = " (the kernel does this when memory runs out)" if returncode == -signal.SIGKILL else ""
        return f"the worker was killed by {name}{hint}"
    return f"the worker ended with status {returncode}"


def _environment() -> dict[str, str]:
    """The child's environment. It never asks a hub: what it loads is on disk by then."""
    return {
        **os.environ,
        "HF_HUB_OFFLINE": "1",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "PYTHONUNBUFFERED": "1",
    }
