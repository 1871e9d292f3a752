"""One supervised worker: a child process that is started, watched, restarted with growing pauses, and ended with us."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from qserve.engine.base import WorkerEndpoint, WorkerState
from qserve.engine.launch import Launch
from qserve.engine.process import death_of
from qserve.engine.process_tree import tree_of
from qserve.errors import QserveError, WorkerFailed
from qserve.planner.plan import Plan
from qserve.supervisor.asking import Asking
from qserve.supervisor.child import Child
from qserve.supervisor.liveness import activity, stacks, stall
from qserve.supervisor.liveness.start_watch import StartStuck, StartWatch
from qserve.supervisor.sanity import LIMIT_S, Sanity, check_sanity

__all__ = ["ANY", "CPU", "SupervisedWorker", "WorkerEvents"]

_log = logging.getLogger("qserve.supervisor")
_FIRST_PAUSE_S = 0.25
_LONGEST_PAUSE_S = 30.0
# After a worker ran this long, or answered anybody, the pauses before a restart begin again with the first.
_WELL_AFTER_S = 60.0
_MAX_FAILED_STARTS = 10
_READY_INTERVAL_S = 0.1
_HEALTH_INTERVAL_S = 2.0
_HEALTH_TIMEOUT_S = 30.0
_MISSED_HEALTH_CHECKS = 3
_DRAIN_LOOK_S = 0.05

CPU = "cpu"
ANY = "any"
"""Words among `SupervisedWorker.devices` for the CPU, and for cards that can't be told apart."""

WorkerEvents = Callable[[str, str, dict[str, Any]], None]
"""`tell(worker, event, details)`: `phase`, `ready`, `down`, `restart`, `retry`; for the screen and the run's record."""


# They end vLLM 0.32's engine there (docs/results/LOG.md); our own serves no adapters.
_NO_LOGPROBS_BESIDE_ADAPTERS = "on a CPU vLLM's log-probabilities of a prompt are not to be asked beside LoRA adapters"


class SupervisedWorker:
    """A `Worker` that is a process of this machine: keeps it alive and its `endpoint` true."""

    def __init__(self, endpoint: WorkerEndpoint, launch: Launch, log_file: Path, tell: WorkerEvents) -> None:
        """Nothing is started yet.

        Args:
            endpoint: its state, limits and detail are written here for the gateway.
            launch: how it is started and understood.
            log_file: where the worker's output goes.
            tell: hears what happens to it.

        """
        self.endpoint = endpoint
        self.launch = launch
        self.phases_s: dict[str, float] = {}
        self.vocab_size: int | None = None
        """Of a model that must predict text; None where that is no question (rewards, random weights on purpose)."""
        self.start_limit_s: float | None = None
        """How long its start may show no progress; None: by phase (`start_watch.py`)."""
        self.devices: frozenset[str] = frozenset({CPU})
        """What it computes on: uuids of cards, or `CPU`, or `ANY`."""
        self._restart_wanted = asyncio.Event()
        self._log_file = log_file
        self._tell = tell
        self._child: Child | None = None
        self._asking = Asking(endpoint)

    @property
    def pid(self) -> int | None:
        """The child's process id while there is one."""
        return None if self._child is None else self._child.pid

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
            if again is None:
                raise
            self.launch, plan = again.launch, again.plan
            self._event("retry", refused=str(error), reason=again.reason, plan=plan)
            self.endpoint.plan = plan.to_json()
            self.endpoint.max_num_seqs = plan.workload.max_num_seqs
            self.endpoint.max_model_len = plan.workload.max_model_len
            await self._start_once()

    async def watch(self) -> None:
        """Stay with the worker: restart it when it ends or hangs. Raises WorkerFailed when restarts don't help."""
        pause_s = _FIRST_PAUSE_S
        while True:
            ready_at, num_pieces = time.monotonic(), self.endpoint.num_pieces
            reason = await self._until_down()
            has_answered = self.endpoint.num_pieces != num_pieces  # so that it is worth a start
            if has_answered or time.monotonic() - ready_at > _WELL_AFTER_S:
                pause_s = _FIRST_PAUSE_S
            wanted = self._restart_wanted.is_set()
            self._restart_wanted.clear()
            pause_s = await self._restart(reason, 0.0 if wanted else pause_s)

    async def restart(self) -> None:
        """Let its requests come to their ends, without new ones, and start it again. Returns when it is ready.

        Somebody must `watch` it. Raises WorkerFailed if it does not come back.
        """
        before = self.endpoint.num_restarts
        self._restart_wanted.set()
        while self.endpoint.num_restarts == before or self.endpoint.state is not WorkerState.READY:
            if self.endpoint.state is WorkerState.FAILED:
                raise WorkerFailed(f"the {self.endpoint.name} worker did not come back: {self.endpoint.detail}")
            await asyncio.sleep(_DRAIN_LOOK_S)

    async def stop(self) -> None:
        """End the worker: politely, then not."""
        if self._child is not None:
            await self._child.end()
        self._asking.close()

    async def memory(self) -> dict[str, Any]:
        """What the worker holds, as it or its engine measured it."""
        assert self.pid is not None
        return await self.launch.memory(self._ask, self.pid)

    async def work(self) -> dict[str, Any]:
        """What it tells of its own work; empty where it tells nothing, or not now."""
        return await self._asking.work()

    async def sanity(self) -> Sanity | None:
        """Whether the model that it serves predicts text; None where that is no question. It must be ready."""
        if self.vocab_size is None:
            return None
        plan = self.launch.plan
        if self.endpoint.adapters and plan is not None and plan.on_cpu:
            return Sanity(self.vocab_size, why_not=_NO_LOGPROBS_BESIDE_ADAPTERS, is_no_question=True)
        return await check_sanity(partial(self._ask, timeout_s=LIMIT_S), self.endpoint.models[0], self.vocab_size)

    async def _start_once(self) -> None:
        await self._spawn()
        try:
            await self._until_ready()
            await self.launch.introduce(self._ask, self.endpoint)
        except QserveError:
            if self._running.returncode is None:
                await self._end_now()
            raise
        self.endpoint.start_phases_s = dict(self.phases_s)
        self._set(WorkerState.READY, "")
        self._event("ready", phases_s=self.phases_s)

    async def _restart(self, reason: str, pause_s: float) -> float:
        """Try until it is ready again; returns the pause before the next restart."""
        for _ in range(_MAX_FAILED_STARTS):
            self.endpoint.num_restarts += 1
            self._set(WorkerState.RESTARTING, f"{reason}; it is being restarted")
            self._event("restart", reason=reason, pause_s=pause_s)
            _log.warning("%s worker: %s; restarting in %.2f s", self.endpoint.name, reason, pause_s)
            await asyncio.sleep(pause_s)
            pause_s = min(max(2 * pause_s, _FIRST_PAUSE_S), _LONGEST_PAUSE_S)
            try:
                await self.start()
            except QserveError as error:
                reason = str(error)
            else:
                _log.warning("%s worker: ready again", self.endpoint.name)
                return pause_s
        self._set(WorkerState.FAILED, reason)
        raise WorkerFailed(f"the {self.endpoint.name} worker failed to start {_MAX_FAILED_STARTS} times: {reason}")

    async def _spawn(self) -> None:
        self.launch.begin()
        self.phases_s = {}
        self._num_lines = 0
        self._phase, self._phase_began = "starting the process", time.monotonic()
        self._child = await Child.start(self.launch.command, self.launch.environment, self._log_file, self._hear)

    @property
    def _running(self) -> Child:
        assert self._child is not None, "it was started"
        return self._child

    def _hear(self, line: str) -> None:
        self._num_lines += 1
        phase = self.launch.hear(line)
        if phase is not None and self.endpoint.state is not WorkerState.READY:
            self._enter(phase)

    def _enter(self, phase: str) -> None:
        if phase == self._phase:
            return
        now = time.monotonic()
        self.phases_s[self._phase] = round(self.phases_s.get(self._phase, 0.0) + now - self._phase_began, 3)
        self._phase, self._phase_began = phase, now
        self._event("phase", name=phase)

    async def _until_ready(self) -> None:
        child = self._running
        watch = StartWatch(self.start_limit_s)
        while child.returncode is None:
            if await self.launch.is_ready(self._ask):
                self._enter("ready")
                return
            await child.wait(_READY_INTERVAL_S)
            stuck = watch.see(self._phase, self._num_lines, lambda: activity.read_bytes_of(tree_of(child.pid)))
            if stuck is not None:
                await self._end_stuck()
                raise StartStuck(stuck, self._log_file)
        await self._reap()
        raise self.launch.failure(child.returncode)

    async def _until_down(self) -> str:
        """The reason, once the worker has ended, or was ended because it hung or said that it is not well."""
        child = self._running
        waits = (self._until_sick(), self._until_hung(child.pid), self._until_drained())
        sick, hung, drained = (asyncio.create_task(one) for one in waits)
        tasks = (asyncio.create_task(child.ended()), sick, hung, drained)
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        if child.returncode is not None:
            self._set(WorkerState.RESTARTING, "the worker ended")
            await self._reap()
            return death_of(child.returncode)
        if not drained.cancelled():
            self._set(WorkerState.RESTARTING, drained.result())
            await self._end_now()
            return drained.result()
        return await self._give_up(sick if hung.cancelled() else hung, has_stacks=not hung.cancelled())

    async def _give_up(self, said: asyncio.Task[str], *, has_stacks: bool) -> str:
        """End a worker that still runs; the reason with what became of it."""
        reason = said.result()
        self._set(WorkerState.RESTARTING, f"the worker {reason}")
        if has_stacks:
            await self._end_stuck()
            return f"the worker {reason} and was ended; where its threads were stands in {self._log_file}"
        await self._end_now()
        return f"the worker {reason} and was ended"

    async def _until_sick(self) -> str:
        """It says that it is not well, or says nothing for a long time."""
        missed = 0
        while True:
            await asyncio.sleep(_HEALTH_INTERVAL_S)
            is_well = await self.launch.is_well(self._ask)
            missed = 0 if is_well else missed + 1
            if is_well is False:
                return "said that it is not well"
            if missed >= _MISSED_HEALTH_CHECKS:
                return f"did not answer {missed} health checks"

    async def _until_drained(self) -> str:
        """A restart is wanted, and nobody is answered any more."""
        await self._restart_wanted.wait()
        self._set(WorkerState.DRAINING, "it is about to be restarted; running requests finish first")
        while self.endpoint.num_requests:
            await asyncio.sleep(_DRAIN_LOOK_S)
        return "a restart was asked for"

    async def _until_hung(self, pid: int) -> str:
        """Requests wait for it and it does nothing (`stall.py`)."""
        watch, before = stall.StallWatch(), None
        while True:
            await asyncio.sleep(stall.INTERVAL_S)
            endpoint, is_working = self.endpoint, True
            if endpoint.num_awaited:  # else there is nothing to find out, and an idle service costs nothing
                pids = await asyncio.to_thread(self.launch.computing, pid)
                now = await asyncio.to_thread(activity.activity_of, pids)
                is_working = before is None or now.worked_since(before, stall.INTERVAL_S) or activity.is_running(pids)
                before = now
            progress = await self.launch.progress(self._ask) if watch.is_suspicious else None
            reason = watch.see(stall.Observation(endpoint.num_awaited, endpoint.num_pieces, progress, is_working))
            if reason is not None:
                return reason

    async def _end_stuck(self) -> None:
        """End it in a way that says where it was."""
        child = self._running
        pids = await asyncio.to_thread(self.launch.computing, child.pid)
        states = await asyncio.to_thread(stacks.states_of, tree_of(child.pid))
        self._event("stuck", processes=states)
        await child.end_with_stacks(pids)
        await self._reap()

    async def _end_now(self) -> None:
        await self._running.end()
        await self._reap()

    async def _reap(self) -> None:
        await self._running.reap()
        self._event("down", returncode=self._running.returncode)

    async def _ask(
        self, method: str, path: str, body: bytes, timeout_s: float = _HEALTH_TIMEOUT_S
    ) -> tuple[int, bytes]:
        return await self._asking.ask(method, path, body, timeout_s)

    def _event(self, event: str, **details: Any) -> None:
        self._tell(self.endpoint.name, event, details)

    def _set(self, state: WorkerState, detail: str) -> None:
        self.endpoint.detail = detail
        self.endpoint.state = state
