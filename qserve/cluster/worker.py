"""A worker on another machine, as the service has it: placed, mirrored, watched, and placed again when it is lost.

What happens on the node itself (a worker that dies or hangs, and is started again there) is its agent's work
(`agent.py`); this one hears of it. It steps in when the agent or its node is gone, when the worker can't be reached
from here, and when somebody wants it restarted or not at all.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import logging
import secrets
from functools import partial
from pathlib import Path
from typing import Any

import qserve.errors
from qserve.cluster.messages import Assignment, Failure, Seen, Told
from qserve.cluster.placement import Place, Places
from qserve.cluster.settings import LEASE_S, RaySettings
from qserve.engine.base import TcpAddress, WorkerEndpoint, WorkerState
from qserve.errors import QserveError, WorkerFailed
from qserve.planner.plan import Plan
from qserve.runs.private import open_private
from qserve.supervisor.asking import Asking
from qserve.supervisor.hosted import Hosted
from qserve.supervisor.sanity import LIMIT_S, Sanity, check_sanity
from qserve.supervisor.worker import WorkerEvents

__all__ = ["RayWorker"]

_log = logging.getLogger("qserve.cluster")
_EXCHANGE_S = 0.5
_RENEW_S = LEASE_S / 5
_HEALTH_INTERVAL_S = 2.0
_HEALTH_TIMEOUT_S = 5.0
_MISSED_HEALTH_CHECKS = 3
_PLACE_LIMIT_S = 900.0
_LOOK_S = 0.05
_END_S = 5.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S, _MAX_FAILED_STARTS = 0.25, 30.0, 10
_NOT_WANTED = "it is started when the load wants it"


class _Lost(Exception):
    """It must be placed again; `avoid` where its node is the likely reason."""

    def __init__(self, reason: str, *, avoid: bool) -> None:
        super().__init__(reason)
        self.avoid = avoid


class RayWorker:
    """A `Worker` of `qserve.supervisor.runner`."""

    def __init__(
        self, hosted: Hosted, checkpoint: str, endpoint: WorkerEndpoint, needs: dict[str, float], places: Places,
        settings: RaySettings, log_file: Path, tell: WorkerEvents,
    ) -> None:  # fmt: skip
        """Nothing is placed yet. `checkpoint`: the name by which nodes find it, or ""; `needs`: of Ray's resources."""
        self.endpoint = endpoint
        self.phases_s: dict[str, float] = {}
        self.vocab_size: int | None = None
        self.start_limit_s: float | None = None
        self.devices: frozenset[str] = frozenset({endpoint.name})
        """Its own: replicas on several nodes start at once."""
        self.measures_free_memory = False
        self.plan: Plan = hosted.plan
        self.notes: list[str] = []
        self.is_wanted = True
        self._hosted = hosted
        self._checkpoint = checkpoint
        self._needs = needs
        self._places = places
        self._settings = settings
        self._log_file = log_file
        self._tell = tell
        self._place: Place | None = None
        self._asking = Asking(endpoint)
        self._num_moves = 0
        self._is_leaving = False
        self._restart_wanted = asyncio.Event()
        self._renewing: asyncio.Task[None] | None = None

    @property
    def node(self) -> str:
        """The address of its node; "" while it has none."""
        return self._place.address if self._place is not None else ""

    async def start(self) -> None:
        """See `Worker.start`; one that is not wanted stays idle."""
        if not self.is_wanted:
            self._set(WorkerState.IDLE, _NOT_WANTED)
            return
        try:
            await self._start()
        except _Lost as lost:
            await self._release(avoid=lost.avoid)
            raise WorkerFailed(str(lost)) from lost
        except BaseException:
            await self._release(avoid=False)
            raise

    async def watch(self) -> None:
        """See `Worker.watch`."""
        while True:
            if self._place is None:
                await self._until_wanted()
            reason, avoid = await self._until_down()
            await self._release(avoid=avoid)
            if self.is_wanted:
                await self._start_again(reason)

    async def restart(self) -> None:
        """See `Worker.restart`."""
        before = self.endpoint.num_restarts
        self._restart_wanted.set()
        while self.endpoint.num_restarts == before or self.endpoint.state is not WorkerState.READY:
            if self.endpoint.state is WorkerState.FAILED:
                raise WorkerFailed(f"the {self.endpoint.name} worker did not come back: {self.endpoint.detail}")
            await asyncio.sleep(_LOOK_S)

    async def stop(self) -> None:
        """See `Worker.stop`."""
        await self._release(avoid=False)
        self._asking.close()

    async def memory(self) -> dict[str, Any]:
        """See `Worker.memory`; empty while it does not run."""
        if self._place is None or self.endpoint.state not in (WorkerState.READY, WorkerState.DRAINING):
            return {}
        try:
            return dict(await self._place.agent.memory.remote())
        except Exception as error:  # Ray raises what the agent raised under classes of its own
            raise WorkerFailed(f"the node {self.node} did not say what the worker holds: {_words(error)}") from error

    async def work(self) -> dict[str, Any]:
        """See `Worker.work`."""
        return await self._asking.work()

    async def sanity(self) -> Sanity | None:
        """See `Worker.sanity`."""
        if self.vocab_size is None:
            return None
        ask = partial(self._asking.ask, timeout_s=LIMIT_S)
        return await check_sanity(ask, self.endpoint.models[0], self.vocab_size)

    async def _start(self) -> None:
        self.phases_s = {}
        self._phase("waiting for a node")
        self.endpoint.key = secrets.token_urlsafe(32)
        place = self._place = await self._places.reserve(self._needs, self.start_limit_s or _PLACE_LIMIT_S)
        self._phase(f"starting on {place.address}")
        assignment = Assignment(
            self._hosted, self._checkpoint, self.endpoint.key, place.address, self._settings.ports, self.start_limit_s,
            LEASE_S,
        )  # fmt: skip
        await asyncio.to_thread(self._places.start, place, self._needs, assignment)
        self._renewing = asyncio.create_task(_renew(place))
        while (seen := await self._exchange(self.start_limit_s or _PLACE_LIMIT_S)).state is not WorkerState.READY:
            _raise(seen.failure)
        self._mirror(seen)
        self.phases_s = dict(self.endpoint.start_phases_s)
        self.endpoint.address = seen.address
        await self._check_reachable(seen.address)
        self._set(WorkerState.READY, "")

    async def _start_again(self, reason: str) -> None:
        """Until it is ready again, elsewhere where that is better. Raises WorkerFailed when nothing helps."""
        pause_s = 0.0
        for _ in range(_MAX_FAILED_STARTS):
            self._num_moves += 1
            self.endpoint.num_restarts += 1
            self._set(WorkerState.RESTARTING, f"{reason}; it is being started again")
            self._event("restart", reason=reason, pause_s=pause_s)
            _log.warning("%s worker: %s; it is being started again", self.endpoint.name, reason)
            await asyncio.sleep(pause_s)
            pause_s = min(max(2 * pause_s, _FIRST_PAUSE_S), _LONGEST_PAUSE_S)
            try:
                await self.start()
            except QserveError as error:
                reason = str(error)
            else:
                _log.warning("%s worker: ready again on %s", self.endpoint.name, self.node)
                return
        self._set(WorkerState.FAILED, reason)
        raise WorkerFailed(f"the {self.endpoint.name} worker failed to start {_MAX_FAILED_STARTS} times: {reason}")

    async def _until_wanted(self) -> None:
        """Idle; returns when it runs again."""
        self._set(WorkerState.IDLE, _NOT_WANTED)
        while not self.is_wanted:
            await asyncio.sleep(_LOOK_S)
        self._set(WorkerState.STARTING, "the load wants it")
        try:
            await self.start()
        except QserveError as error:
            await self._start_again(str(error))

    async def _until_down(self) -> tuple[str, bool]:
        """Why it must be placed again or ended, and whether its node is to be avoided."""
        tasks = [asyncio.create_task(one) for one in (self._follow(), self._until_unreachable(), self._until_drained())]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        error = next(iter(done)).exception()
        if isinstance(error, _Lost):
            self._set(WorkerState.RESTARTING, str(error))
            return str(error), error.avoid
        if error is not None:
            raise error
        return "a restart was asked for", False

    async def _follow(self) -> None:
        """Hear from the agent; raises _Lost when it is gone or has given up."""
        while True:
            seen = await self._exchange(LEASE_S)
            self._mirror(seen)
            if seen.failure is not None:
                raise _Lost(seen.failure.message, avoid=False)
            if not self._is_leaving and (seen.state, seen.detail) != (self.endpoint.state, self.endpoint.detail):
                self._set(seen.state, seen.detail)

    async def _until_unreachable(self) -> None:
        """Raises _Lost once it has missed several health checks from here, whatever Ray says of it."""
        missed = 0
        while missed < _MISSED_HEALTH_CHECKS:
            await asyncio.sleep(_HEALTH_INTERVAL_S)
            if self.endpoint.state not in (WorkerState.READY, WorkerState.DRAINING):
                missed = 0  # its agent brings it back
                continue
            status, _ = await self._asking.ask("GET", "/health", b"", _HEALTH_TIMEOUT_S)
            missed = 0 if status else missed + 1
        raise _Lost(f"the worker on {self.node} did not answer {missed} health checks", avoid=True)

    async def _until_drained(self) -> None:
        """A restart is wanted, or it is not wanted any more, and nobody is answered by it."""
        while self.is_wanted and not self._restart_wanted.is_set():
            await asyncio.sleep(_LOOK_S)
        self._restart_wanted.clear()
        self._is_leaving = True
        self._set(WorkerState.DRAINING, "it is about to be ended; running requests finish first")
        while self.endpoint.num_requests:
            await asyncio.sleep(_LOOK_S)

    async def _exchange(self, limit_s: float) -> Seen:
        """The agent's next words. Raises _Lost where none come."""
        assert self._place is not None, "it was placed"
        told = Told(self.endpoint.num_awaited, self.endpoint.num_pieces, _EXCHANGE_S)
        try:
            async with asyncio.timeout(limit_s):  # not wait_for, which may lose a cancellation (bpo-37658)
                seen: Seen = await self._place.agent.exchange.remote(told)
        except TimeoutError:
            raise _Lost(f"the node {self.node} did not answer for {limit_s:g} s", avoid=True) from None
        except Exception as error:  # every way in which an actor is lost has a class of its own in Ray
            raise _Lost(f"the node {self.node} is gone: {_words(error)}", avoid=True) from error
        self._keep(seen)
        return seen

    def _keep(self, seen: Seen) -> None:
        for event, details in seen.events:
            self._event(event, **details)
        self.notes, self.plan = list(seen.notes), seen.plan
        if seen.log:
            with contextlib.suppress(OSError), io.FileIO(self._log_file, "a", opener=open_private) as log:
                log.write(seen.log)

    def _mirror(self, seen: Seen) -> None:
        """What the worker says of itself; its state is the caller's to set."""
        for name, value in seen.fields.items():
            setattr(self.endpoint, name, value)
        self.endpoint.num_restarts = self._num_moves + seen.num_restarts

    async def _check_reachable(self, address: TcpAddress) -> None:
        status, _ = await self._asking.ask("GET", "/health", b"", _HEALTH_TIMEOUT_S)
        if not status:
            raise _Lost(
                f"the worker on {self.node} runs, and its port {address.port} can't be reached from here; open the "
                f"ports {self._settings.ports} between the nodes, or choose others with --ray-ports",
                avoid=True,
            )

    async def _release(self, *, avoid: bool) -> None:
        """What runs on its node ends: politely, where it still hears, then not."""
        place, self._place, self._is_leaving = self._place, None, False
        if self._renewing is not None:
            self._renewing.cancel()
        if place is None:
            return
        if place.agent is not None and not avoid:
            with contextlib.suppress(Exception):
                async with asyncio.timeout(_END_S):
                    await place.agent.end.remote()
        with contextlib.suppress(Exception):  # of a cluster that is gone nothing can be given back
            await asyncio.to_thread(partial(self._places.give_back, place, self._needs, avoid=avoid))

    def _phase(self, name: str) -> None:
        self._event("phase", name=name)

    def _event(self, event: str, **details: Any) -> None:
        self._tell(self.endpoint.name, event, details)

    def _set(self, state: WorkerState, detail: str) -> None:
        self.endpoint.detail = detail
        self.endpoint.state = state


async def _renew(place: Place) -> None:
    """Keep its lease, whoever watches it: a service that drains for minutes, or tests its model, still holds it."""
    while True:
        with contextlib.suppress(Exception):  # an agent that is gone is found out elsewhere
            async with asyncio.timeout(LEASE_S):
                await place.agent.renew.remote()
        await asyncio.sleep(_RENEW_S)


def _raise(failure: Failure | None) -> None:
    """What ended the start on the node, as the same kind of error here."""
    if failure is not None:
        kind = getattr(qserve.errors, failure.kind, WorkerFailed)
        error: QserveError = WorkerFailed(failure.message)
        if isinstance(kind, type) and issubclass(kind, QserveError):
            with contextlib.suppress(TypeError):
                error = kind(failure.message)
        raise error


def _words(error: Exception) -> str:
    """Ray's errors run over many lines."""
    return " ".join(str(error).split())[:200] or type(error).__name__
