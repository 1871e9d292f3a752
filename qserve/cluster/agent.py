"""The actor on a node: it holds one worker, which ends with it, and ends itself when the service is gone.

Its parts: a thread with the event loop of a `SupervisedWorker`, which starts the worker, watches it and brings it back
on this node; the threads of Ray that answer the service; and the lease. The worker asks the kernel to end it with the
thread that started it, so whatever ends this process ends the worker: the raylet, the service, the lease.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from qserve.cluster.checkpoints import checkpoint_folder
from qserve.cluster.free_port import free_port
from qserve.cluster.join import ray_module
from qserve.cluster.messages import AgentStatus, Assignment, Failure, GatewayStatus
from qserve.cluster.spanning import set_vllm_environment
from qserve.errors import QserveError
from qserve.supervisor.private import private_folder
from qserve.supervisor.this_machine import facts_of, local_worker
from qserve.supervisor.worker import SupervisedWorker
from qserve.worker.base import TcpAddress, WorkerStatus

__all__ = ["Agent", "Lease", "LogTail"]

_LOOK_S = 0.05
_MEMORY_S = 20.0
_END_S = 15.0
_MOST_LOG_BYTES = 256 * 1024
_LOOKS_PER_LEASE = 10
# What Ray sets for its own tasks, and a worker would take for the user's wish.
_OF_RAY = ("OMP_NUM_THREADS", "RAY_JOB_ID", "RAY_RAYLET_PID")


class Agent:
    """See `Assignment`. Ray calls its methods from several threads."""

    def __init__(self, assignment: Assignment) -> None:
        """Returns at once; the worker is started beside it."""
        for name in _OF_RAY:
            os.environ.pop(name, None)
        self._assignment = assignment
        self._lock = threading.Lock()
        self._events: list[tuple[str, Mapping[str, Any]]] = []
        self._failure: Failure | None = None
        self._folder = ExitStack()
        self._private = self._folder.enter_context(private_folder()).path
        self._log = LogTail(self._private / "worker.log")
        self._worker: SupervisedWorker | None = None
        self._status = self._new_status()
        self._seen_state: tuple[Any, ...] = ()
        self._lease = Lease(assignment.lease_s, self._cut_off)
        self._loop = asyncio.new_event_loop()
        # The worker dies with the thread that forks it: this one lives as long as the process.
        threading.Thread(target=self._run, daemon=True, name="worker").start()

    def renew(self) -> None:
        """The service is there."""
        self._lease.renew()

    def exchange(self, gateway: GatewayStatus) -> AgentStatus:
        """Answers as soon as something has changed, or after `gateway.wait_s`."""
        self._status.load = gateway.load
        self._wait_for_change(gateway.wait_s)
        return self._answer()

    def memory(self) -> dict[str, Any]:
        """What the worker holds. Raises QserveError or TimeoutError where it does not tell."""
        assert self._worker is not None, "it was ready"
        return asyncio.run_coroutine_threadsafe(self._worker.memory(), self._loop).result(_MEMORY_S)

    def end(self) -> None:
        """End the worker politely; whoever made this agent kills it afterwards."""
        if self._worker is not None:
            asyncio.run_coroutine_threadsafe(self._worker.stop(), self._loop).result(_END_S)
        self._folder.close()

    def _run(self) -> None:
        self._loop.run_until_complete(self._live())
        self._loop.run_forever()  # `end` and `memory` may still be asked

    async def _live(self) -> None:
        try:
            if self._assignment.deployment.num_nodes > 1:
                set_vllm_environment(ray_module().get_runtime_context().gcs_address, self._assignment.host)
            wanted = self._assignment
            folder = await asyncio.to_thread(
                checkpoint_folder, wanted.deployment.folder, wanted.checkpoint, wanted.checkpoint_key
            )
            deployment = replace(wanted.deployment, folder=folder)
            self._worker = local_worker(deployment, self._status, self._private, self._log.file, self._report)
            self._worker.start_limit_s = self._assignment.start_limit_s
            await self._worker.start()
            await self._worker.watch()
        except QserveError as error:
            self._failure = Failure(type(error).__name__, str(error))
        except Exception as error:
            self._failure = Failure("WorkerFailed", f"{type(error).__name__}: {error}")

    def _new_status(self) -> WorkerStatus:
        assignment = self._assignment
        address = TcpAddress(assignment.host, free_port(assignment.host, assignment.ports))
        return WorkerStatus(replace(facts_of(assignment.deployment, address), key=assignment.key))

    def _report(self, worker: str, event: str, details: dict[str, Any]) -> None:
        with self._lock:
            self._events.append((event, dict(details)))

    def _wait_for_change(self, wait_s: float) -> None:
        waiting = threading.Event()
        for _ in range(max(1, round(wait_s / _LOOK_S))):
            if self._events or self._state() != self._seen_state:
                return
            waiting.wait(_LOOK_S)

    def _state(self) -> tuple[Any, ...]:
        return self._status.state, self._status.detail, self._status.num_restarts, self._failure

    def _answer(self) -> AgentStatus:
        status, worker = self._status, self._worker
        with self._lock:
            events, self._events = tuple(self._events), []
            self._seen_state = self._state()
        plan = (worker.plan if worker is not None else None) or self._assignment.deployment.plan
        notes = tuple(worker.notes) if worker is not None else ()
        return AgentStatus(
            status.state,
            status.detail,
            status.facts,
            status.num_restarts,
            frozenset(status.outside_deaths),
            status.start_phases_s,
            events,
            self._log.read(),
            notes,
            plan,
            self._failure,
        )

    def _cut_off(self) -> None:
        """Nobody has asked for as long as the lease: the worker must not go on beside its replacement."""
        try:
            self._folder.close()
        finally:  # also where the worker writes while its folder is removed; the next agent here removes the rest
            os._exit(1)


class LogTail:
    """Reads what was appended to a log since the last time, at most 256 KiB; a log that does not exist yet is empty."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self._offset = 0

    def read(self) -> bytes:
        """The next piece; b"" where nothing was written."""
        try:
            with self.file.open("rb") as log:
                log.seek(self._offset)
                piece = log.read(_MOST_LOG_BYTES)
        except OSError:
            return b""
        self._offset += len(piece)
        return piece


class Lease:
    """Calls `end` in a thread of its own once `renew` was not called for `duration_s`.

    The clock goes on while a process is stopped: one that wakes up after its lease ends at once.
    """

    def __init__(self, duration_s: float, end: Callable[[], None]) -> None:
        """It begins now."""
        self._duration_s = duration_s
        self._end = end
        self._renewed_s = time.monotonic()
        threading.Thread(target=self._watch, daemon=True, name="lease").start()

    def renew(self) -> None:
        """The other side is there."""
        self._renewed_s = time.monotonic()

    def _watch(self) -> None:
        while time.monotonic() - self._renewed_s <= self._duration_s:
            time.sleep(self._duration_s / _LOOKS_PER_LEASE)
        self._end()
