"""A worker on another machine: places it, mirrors its state, and places it again if it is lost.

What happens on the node itself (a worker that dies or hangs, and is started again there) is its agent's work
(`agent.py`); this one hears of it. It steps in when the agent or its node is gone, when the worker can't be reached
from here, and when somebody wants it restarted or not at all.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import secrets
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import qserve.errors
from qserve.cluster.checkpoints import key_of
from qserve.cluster.messages import AgentStatus, Assignment, Failure, GatewayStatus
from qserve.cluster.placed_agent import PlacedAgent, WorkerLost
from qserve.cluster.placement import Reservations
from qserve.cluster.settings import LEASE_S, RaySettings
from qserve.errors import QserveError, WorkerFailed
from qserve.planner.plan import Plan
from qserve.runs.private import open_private
from qserve.supervisor.deployment import ModelDeployment
from qserve.supervisor.liveness import health
from qserve.supervisor.liveness.restarts import Restarts, WorkerEvents
from qserve.supervisor.sanity.check import LIMIT_S, Sanity, check_sanity
from qserve.supervisor.worker_requests import WorkerRequests
from qserve.worker.base import TcpAddress, WorkerState, WorkerStatus

__all__ = ["RayWorker"]

_EXCHANGE_S = 0.5
_HEALTH_TIMEOUT_S = 5.0
_PLACE_LIMIT_S = 900.0
_LOOK_S = 0.05
_ASKED_FOR = "a restart was requested"
_NOT_WANTED = "it is started when the load needs it"


class RayWorker:
    """A `Worker` of `qserve.supervisor.runner`."""

    def __init__(
        self,
        deployment: ModelDeployment,
        checkpoint: str,
        status: WorkerStatus,
        needs: dict[str, float],
        reservations: Reservations,
        settings: RaySettings,
        log_file: Path,
        report: WorkerEvents,
    ) -> None:
        """Nothing is placed yet. `checkpoint`: the name by which nodes find it, or ""; `needs`: of Ray's resources."""
        self.status = status
        self.phases_s: dict[str, float] = {}
        self.vocab_size: int | None = None
        self.start_limit_s: float | None = None
        self.devices: frozenset[str] = frozenset({status.name})
        """Its own: replicas on several nodes start at once."""
        self.measures_free_memory = False
        self.plan: Plan = deployment.plan
        self.notes: list[str] = []
        self.is_wanted = True
        self._deployment = deployment
        self._checkpoint = checkpoint
        self._needs = needs
        self._reservations = reservations
        self._settings = settings
        self._log_file = log_file
        self._restarts = Restarts(status, report)
        self._agent: PlacedAgent | None = None
        self._requests = WorkerRequests(status)
        self._num_restarts_before = 0  # the agent that is there now
        self._is_leaving = False

    @property
    def node(self) -> str:
        """The address of its node; "" while it has none."""
        return self._agent.address if self._agent is not None else ""

    async def start(self) -> None:
        """See `Worker.start`; one that is not wanted stays idle."""
        if not self.is_wanted:
            self._restarts.enter(WorkerState.IDLE, _NOT_WANTED)
            return
        try:
            await self._start()
        except WorkerLost as lost:
            await self._release(lost)
            raise WorkerFailed(str(lost)) from lost
        except QserveError as error:  # what is wrong may be wrong on this node alone
            await self._release(WorkerLost(str(error), is_reachable=True))
            raise
        except BaseException:
            await self._release(None)
            raise

    async def watch(self) -> None:
        """See `Worker.watch`."""
        while True:
            while self._agent is None:
                await self._until_wanted()
            lost = await self._until_down()
            await self._release(lost)
            self._restarts.clear_request()
            if self.is_wanted:
                await self._restarts.start_again(self.start, _ASKED_FOR if lost is None else str(lost), 0.0)

    async def restart(self) -> None:
        """See `Worker.restart`; one that is not wanted is left alone."""
        if self.is_wanted:
            await self._restarts.request()

    async def stop(self) -> None:
        """See `Worker.stop`."""
        await self._release(None)
        self._requests.close()

    async def memory(self) -> dict[str, Any]:
        """See `Worker.memory`; empty while it does not run."""
        if self._agent is None or self.status.state not in (WorkerState.READY, WorkerState.DRAINING):
            return {}
        return await self._agent.memory()

    async def work(self) -> dict[str, Any]:
        """See `Worker.work`."""
        return await self._requests.work()

    async def sanity(self) -> Sanity | None:
        """See `Worker.sanity`."""
        if self.vocab_size is None:
            return None
        send = partial(self._requests.send, timeout_s=LIMIT_S)
        return await check_sanity(send, self.status.facts.models[0], self.vocab_size)

    async def _start(self) -> None:
        self.phases_s = {}
        self._num_restarts_before = self.status.num_restarts
        self.status.facts = replace(self.status.facts, key=secrets.token_urlsafe(32))
        limit_s = self.start_limit_s or _PLACE_LIMIT_S
        self._restarts.event("phase", name="waiting for a node")
        self._agent = await PlacedAgent.reserve(self._reservations, self._needs, limit_s)
        self._restarts.event("phase", name=f"starting on {self.node}")
        await self._agent.start(await self._assignment())
        while (status := await self._exchange(limit_s)).state is not WorkerState.READY:
            _raise(status.failure)
        self._mirror(status)
        self.phases_s = dict(self.status.start_phases_s)
        await self._check_reachable()
        self._restarts.enter(WorkerState.READY, "")

    async def _assignment(self) -> Assignment:
        key = await asyncio.to_thread(key_of, self._deployment.folder)
        return Assignment(
            self._deployment,
            self._checkpoint,
            key,
            self.status.facts.key,
            self.node,
            self._settings.ports,
            self.start_limit_s,
            LEASE_S,
        )

    async def _until_wanted(self) -> None:
        """Idle; returns when it runs again, or was idle again meanwhile."""
        self._restarts.enter(WorkerState.IDLE, _NOT_WANTED)
        while not self.is_wanted:
            await asyncio.sleep(_LOOK_S)
        self._restarts.clear_request()
        self._restarts.enter(WorkerState.STARTING, "the load needs it")
        try:
            await self.start()
        except QserveError as error:
            await self._restarts.start_again(self.start, str(error), 0.0)

    async def _until_down(self) -> WorkerLost | None:
        """Why it must be placed again; None where somebody wants it ended or restarted."""
        tasks = [asyncio.create_task(one) for one in (self._follow(), self._until_unreachable(), self._until_drained())]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        error = next(iter(done)).exception()
        if isinstance(error, WorkerLost):
            if error.is_outside:
                self.status.outside_deaths.add(self.status.num_restarts)
            self._restarts.enter(WorkerState.RESTARTING, str(error))
            return error
        if error is not None:
            raise error
        return None

    async def _follow(self) -> None:
        """Hear from the agent; raises WorkerLost when it is gone or has given up."""
        while True:
            status = await self._exchange(LEASE_S)
            self._mirror(status)
            if status.failure is not None:
                raise WorkerLost(status.failure.message, is_reachable=True)
            if not self._is_leaving and (status.state, status.detail) != (self.status.state, self.status.detail):
                self._restarts.enter(status.state, status.detail)

    async def _until_unreachable(self) -> None:
        """Raises WorkerLost once it has missed several health checks from here, whatever Ray says of it."""
        missed = 0
        while missed < health.MISSED_CHECKS:
            await asyncio.sleep(health.INTERVAL_S)
            if self.status.state not in (WorkerState.READY, WorkerState.DRAINING):
                missed = 0  # its agent brings it back
                continue
            status, _ = await self._requests.send("GET", "/health", b"", _HEALTH_TIMEOUT_S)
            missed = 0 if status else missed + 1
        raise WorkerLost(f"the worker on {self.node} did not answer {missed} health checks")

    async def _until_drained(self) -> None:
        """A restart is wanted, or it is not wanted any more, and nobody is answered by it."""
        while self.is_wanted and not self._restarts.is_requested:
            await asyncio.sleep(_LOOK_S)
        self._is_leaving = True
        await self._restarts.drain("it is about to be ended; running requests finish first")

    async def _exchange(self, limit_s: float) -> AgentStatus:
        """The agent's next status, kept. Raises WorkerLost if none comes."""
        assert self._agent is not None, "it was placed"
        status = await self._agent.exchange(GatewayStatus(self.status.load, _EXCHANGE_S), limit_s)
        for event, details in status.events:
            self._restarts.event(event, **details)
        self.notes, self.plan = list(status.notes), status.plan
        if status.log:
            with contextlib.suppress(OSError), io.FileIO(self._log_file, "a", opener=open_private) as log:
                log.write(status.log)
        return status

    def _mirror(self, status: AgentStatus) -> None:
        """What the worker says of itself; its state is the caller's to set."""
        own = self.status.facts
        facts = replace(status.facts, tokenizer=own.tokenizer, vocab_size=own.vocab_size)  # of the folder here
        if facts != own:
            self.status.facts = facts
        self.status.start_phases_s = status.start_phases_s
        self.status.num_restarts = self._num_restarts_before + status.num_restarts
        self.status.outside_deaths |= {self._num_restarts_before + life for life in status.outside_deaths}

    async def _check_reachable(self) -> None:
        address = self.status.facts.address
        assert isinstance(address, TcpAddress), "it listens for the service"
        status, _ = await self._requests.send("GET", "/health", b"", _HEALTH_TIMEOUT_S)
        if not status:
            raise WorkerLost(
                f"the worker on {self.node} runs, and its port {address.port} can't be reached from here; open the "
                f"ports {self._settings.ports} between the nodes, or choose others with --ray-ports"
            )

    async def _release(self, lost: WorkerLost | None) -> None:
        """Gives its place back; None: nothing is wrong with its node."""
        agent, self._agent, self._is_leaving = self._agent, None, False
        if agent is not None:
            await agent.release(avoid=lost is not None, is_reachable=lost is None or lost.is_reachable)


def _raise(failure: Failure | None) -> None:
    """What ended the start on the node, as the same kind of error here."""
    if failure is not None:
        kind = getattr(qserve.errors, failure.kind, WorkerFailed)
        error: QserveError = WorkerFailed(failure.message)
        if isinstance(kind, type) and issubclass(kind, QserveError):
            with contextlib.suppress(TypeError):
                error = kind(failure.message)
        raise error
