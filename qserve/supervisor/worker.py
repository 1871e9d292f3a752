"""One supervised worker: a child process that is started, watched, restarted with growing pauses, and stopped."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from qserve.errors import QserveError, WorkerFailed
from qserve.planner.plan import Plan
from qserve.supervisor.adapters.in_worker import WorkerAdapters
from qserve.supervisor.child import Child, Descriptors
from qserve.supervisor.deployment import ModelDeployment
from qserve.supervisor.liveness import activity, stacks
from qserve.supervisor.liveness.health import until_hung, until_sick
from qserve.supervisor.liveness.outside_kill import MemoryKills
from qserve.supervisor.liveness.restarts import FIRST_PAUSE_S, Restarts, WorkerEvents
from qserve.supervisor.liveness.start_watch import StartStuck, StartWatch
from qserve.supervisor.sanity.check import LIMIT_S, Sanity, check_sanity
from qserve.supervisor.start_log import StartLog
from qserve.supervisor.start_phases import StartPhases
from qserve.supervisor.takeover.handed import HandedWorker
from qserve.supervisor.worker_requests import WorkerRequests
from qserve.worker.base import WorkerState, WorkerStatus
from qserve.worker.launch import Launch
from qserve.worker.process import death_of
from qserve.worker.process_tree import tree_of

__all__ = ["ANY", "CPU", "SupervisedWorker"]

# After a worker ran this long, or answered a request, the back-off of restarts begins anew.
_WELL_AFTER_S = 60.0
_READY_INTERVAL_S = 0.1
_HEALTH_TIMEOUT_S = 30.0

CPU = "cpu"
ANY = "any"
"""Words among `SupervisedWorker.devices` for the CPU, and for cards that can't be told apart."""

# They end vLLM 0.32's engine there (docs/results/log/gateway.md) where it may load none later; our own serves none.
_NO_LOGPROBS_BESIDE_ADAPTERS = "vLLM on a CPU has no log-probabilities of prompts with LoRA adapters"


class SupervisedWorker:
    """A `Worker` that is a process of this machine: keeps it running and its `status` up to date."""

    def __init__(self, status: WorkerStatus, launch: Launch, log_file: Path, report: WorkerEvents) -> None:
        """Nothing is started yet.

        Args:
            status: its state, facts and detail are written here for the gateway.
            launch: how it is started and how its output is read.
            log_file: where the worker's output goes.
            report: receives its events.

        """
        self.status = status
        self.launch = launch
        self.phases_s: dict[str, float] = {}
        self.vocab_size: int | None = None
        """Of a model whose loss is checked; None for reward models and random weights."""
        self.start_limit_s: float | None = None
        """How long its start may show no progress; None: by phase (`start_watch.py`)."""
        self.devices: frozenset[str] = frozenset({CPU})
        """What it computes on: uuids of cards, or `CPU`, or `ANY`."""
        self._restarts = Restarts(status, report)
        self._log = StartLog(log_file)
        self._child: Child | None = None
        self._requests = WorkerRequests(status)
        self.adapters = WorkerAdapters(status, self._send)
        """What was loaded into it, and is loaded again with each start."""
        self._given_up = asyncio.Event()
        self._why_given_up = ""
        self.may_restart = asyncio.Event()
        """Clear while the machine has no memory for it: it was ended to free some, and waits."""
        self.may_restart.set()

    @property
    def pid(self) -> int | None:
        """The child's process id while there is one."""
        return None if self._child is None else self._child.pid

    @property
    def running_pid(self) -> int | None:
        """`pid` while the process runs; later it may be somebody else's."""
        return None if self._child is None or self._child.returncode is not None else self._child.pid

    @property
    def plan(self) -> Plan | None:
        """See `Worker`, as the others."""
        return self.launch.plan

    @property
    def notes(self) -> list[str]:
        return self.launch.notes

    @property
    def measures_free_memory(self) -> bool:
        return self.launch.measures_free_memory

    async def start(self) -> None:
        """Start the worker and return when it is ready. Raises with the worker's own reason if it ends before that.

        Where the engine refused the plan for memory and its own numbers say what would fit, it is tried once more
        with those, never silently.
        """
        try:
            await self._start_once()
        except QserveError as error:
            again = self.launch.retry_stuck() if isinstance(error, StartStuck) else self.launch.retry()
            if again is None or self._given_up.is_set():
                raise
            self.launch, plan = again.launch, again.plan
            self._restarts.event("retry", refused=str(error), reason=again.reason, plan=plan)
            limits = plan.workload
            self.status.facts = replace(
                self.status.facts,
                plan=plan.to_json(),
                max_num_seqs=limits.max_num_seqs,
                max_model_len=limits.max_model_len,
            )
            await self._start_once()

    async def watch(self) -> None:
        """Restart the worker when it ends or hangs. Raises WorkerFailed if restarts do not help."""
        pause_s = FIRST_PAUSE_S
        while True:
            ready_at, num_pieces = time.monotonic(), self.status.load.num_pieces
            reason = await self._until_down()
            has_answered = self.status.load.num_pieces != num_pieces  # so that it is worth a start
            if has_answered or time.monotonic() - ready_at > _WELL_AFTER_S:
                pause_s = FIRST_PAUSE_S
            is_requested = self._restarts.is_requested
            self._restarts.clear_request()
            pause_s = await self._restarts.start_again(self._start_again, reason, 0.0 if is_requested else pause_s)

    def give_up(self, reason: str) -> None:
        """Kill what computes at once, started or starting: the machine needs its memory. `watch` starts it again.

        `reason` is what the log, the clients and the error of a start say.
        """
        pid = self.running_pid
        if pid is None or self._given_up.is_set():
            return
        self._why_given_up = reason
        self._given_up.set()
        for one in self.launch.computing(pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(one, signal.SIGKILL)

    async def _start_again(self) -> None:
        if not self.may_restart.is_set():
            self.status.detail = f"{self._why_given_up}; it is started again when there is memory for it"
            await self.may_restart.wait()
        await self.start()

    async def restart(self) -> None:
        """See `Worker.restart`. Raises WorkerFailed if it does not come back."""
        await self._restarts.request()

    async def stop(self) -> None:
        """End the worker: SIGTERM, then SIGKILL."""
        if self._child is not None:
            await self._child.end()
        self._requests.close()

    async def memory(self) -> dict[str, Any]:
        """The worker's measured memory."""
        assert self.pid is not None
        return await self.launch.memory(self._send, self.pid)

    async def work(self) -> dict[str, Any]:
        """Its report on its own work; empty if it has none, or does not answer."""
        return await self._requests.work()

    async def sanity(self) -> Sanity | None:
        """Whether its model predicts text; None if that is not checked. The worker must be ready."""
        if self.vocab_size is None:
            return None
        plan = self.launch.plan
        facts = self.status.facts
        if facts.adapters and not facts.max_loras and plan is not None and plan.on_cpu:
            return Sanity(self.vocab_size, why_not=_NO_LOGPROBS_BESIDE_ADAPTERS, is_no_question=True)
        return await check_sanity(partial(self._send, timeout_s=LIMIT_S), self.status.facts.models[0], self.vocab_size)

    async def adopt(self, handed: HandedWorker, ends: Descriptors) -> None:
        """Instead of `start`: take over a worker that runs. Raises WorkerFailed where it does not answer."""
        self._log.copy_from(handed.log_file, handed.log_span, self.launch.hear)
        self._num_lines = 0
        self._phases = StartPhases(self.phases_s, lambda name: None)
        self._memory_kills = MemoryKills.until_now()
        self._child = await Child.adopt(handed.pid, ends, self._log.file, self._hear)
        if not await self.launch.is_well(self._send):
            raise WorkerFailed(f"the {self.status.name} worker (process {handed.pid}) does not answer")
        self.status.facts = self.adapters.found(await self.launch.introduce(self._send, self.status.facts))
        self.phases_s.update(handed.phases_s)
        self.status.start_phases_s, self.status.num_restarts = dict(self.phases_s), handed.num_restarts
        self._restarts.enter(WorkerState.READY, "")
        self._restarts.event("adopted", pid=handed.pid)
        self._restarts.event("ready", phases_s=self.phases_s)

    def hand(self, deployment: ModelDeployment) -> tuple[HandedWorker, Descriptors]:
        """For another service's `adopt`; `deployment` is what it was made from. The pidfd is the caller's."""
        child, plan = self._running, self.launch.plan
        handed = HandedWorker(
            deployment if plan is None else replace(deployment, plan=plan),
            self.status.facts.to_json(),
            child.pid,
            self.status.num_restarts,
            dict(self.phases_s),
            self._log.file,
            self._log.span,
        )
        return handed, child.descriptors()

    def pause(self) -> None:
        """Leave its output to another service, or until `resume`. `watch` must not run."""
        self._running.pause()

    def resume(self) -> None:
        """It stays with this service after all."""
        self._running.resume()

    async def let_go(self) -> None:
        """Instead of `stop`: it belongs to another service."""
        if self._child is not None:
            self._child.let_go()
        self._requests.close()

    async def _start_once(self) -> None:
        await self._spawn()
        try:
            await self._until_ready()
            facts = await self.launch.introduce(self._send, self.status.facts)
            async with self.adapters.brought_back(facts) as self.status.facts:
                self.status.start_phases_s = dict(self.phases_s)
                self._log.ends()
                self._restarts.enter(WorkerState.READY, "")
        except QserveError:
            if self._running.returncode is None:
                await self._end_now()
            raise
        self._restarts.event("ready", phases_s=self.phases_s)

    async def _spawn(self) -> None:
        self.launch.begin()
        self._given_up.clear()
        self.phases_s = {}
        self._num_lines = 0
        self._phases = StartPhases(self.phases_s, lambda name: self._restarts.event("phase", name=name))
        self._memory_kills = MemoryKills.until_now()
        self._log.begins()
        self._child = await self._new_child()

    async def _new_child(self) -> Child:
        return await Child.start(self.launch.command, self.launch.environment, self._log.file, self._hear)

    @property
    def _running(self) -> Child:
        assert self._child is not None, "it was started"
        return self._child

    def _hear(self, line: str) -> None:
        self._num_lines += 1
        phase = self.launch.hear(line)
        if phase is not None and self.status.state is not WorkerState.READY:
            self._phases.enter(phase)

    async def _until_ready(self) -> None:
        child = self._running
        watch = StartWatch(self.start_limit_s)
        while child.returncode is None and not self._given_up.is_set():
            if await self.launch.is_ready(self._send):
                self._phases.enter("ready")
                return
            await child.wait(_READY_INTERVAL_S)
            stuck = watch.see(self._phases.current, self._num_lines, lambda: activity.read_bytes_of(tree_of(child.pid)))
            if stuck is not None:
                await self._end_stuck()
                raise StartStuck(stuck, self._log.file)
        if self._given_up.is_set():
            await self._end_now()
            raise WorkerFailed(self._why_given_up)
        await self._reap()
        assert child.returncode is not None, "it ended by itself"
        raise self.launch.failure(child.returncode, is_outside=self._memory_kills.rule_out(child.returncode))

    async def _until_down(self) -> str:
        """Waits until the worker has ended, or was ended as hung or unwell; returns the reason."""
        child = self._running
        sick = asyncio.create_task(until_sick(self.launch, self._send))
        hung = asyncio.create_task(until_hung(self.launch, self._send, self.status, child.pid))
        drained = asyncio.create_task(self._until_drained())
        given_up = asyncio.create_task(self._given_up.wait())
        tasks = (asyncio.create_task(child.ended()), sick, hung, drained, given_up)
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        if self._given_up.is_set():
            self._restarts.enter(WorkerState.RESTARTING, self._why_given_up)
            await self._end_now()
            return self._why_given_up
        if child.returncode is not None:
            if is_outside := self._memory_kills.rule_out(child.returncode):
                self.status.outside_deaths.add(self.status.num_restarts)
            self._restarts.enter(WorkerState.RESTARTING, "the worker ended")
            await self._reap()
            return death_of(child.returncode, is_outside=is_outside)
        if not drained.cancelled():
            self._restarts.enter(WorkerState.RESTARTING, drained.result())
            await self._end_now()
            return drained.result()
        return await self._give_up(sick if hung.cancelled() else hung, has_stacks=not hung.cancelled())

    async def _give_up(self, said: asyncio.Task[str], *, has_stacks: bool) -> str:
        """End a worker that still runs; the reason with what became of it."""
        reason = said.result()
        self._restarts.enter(WorkerState.RESTARTING, f"the worker {reason}")
        if has_stacks:
            await self._end_stuck()
            return f"the worker {reason} and was ended; its stacks are in {self._log.file}"
        await self._end_now()
        return f"the worker {reason} and was ended"

    async def _until_drained(self) -> str:
        """Waits for a requested restart, and until the worker is drained."""
        await self._restarts.requested()
        await self._restarts.drain("it is about to be restarted; running requests finish first")
        return "a restart was requested"

    async def _end_stuck(self) -> None:
        """End it with its stacks in the log."""
        child = self._running
        pids = await asyncio.to_thread(self.launch.computing, child.pid)
        states = await asyncio.to_thread(stacks.states_of, tree_of(child.pid))
        self._restarts.event("stuck", processes=states)
        await child.end_with_stacks(pids)
        await self._reap()

    async def _end_now(self) -> None:
        await self._running.end()
        await self._reap()

    async def _reap(self) -> None:
        await self._running.reap()
        self._restarts.event("down", returncode=self._running.returncode)

    async def _send(
        self, method: str, path: str, body: bytes, timeout_s: float = _HEALTH_TIMEOUT_S
    ) -> tuple[int, bytes]:
        return await self._requests.send(method, path, body, timeout_s)
