"""The gateway of a service: in this process, or in several processes of their own behind the same port."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import socket
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import psutil

from qserve.errors import WorkerFailed
from qserve.gateway.app import build_gateway
from qserve.gateway.http.in_flight import InFlight
from qserve.gateway.http.server import build_server, run_server
from qserve.gateway.processes.coordinator import Coordinator, Service
from qserve.gateway.processes.member import Member
from qserve.gateway.settings import GatewaySettings
from qserve.gateway.telemetry.tracing import Traces
from qserve.gateway.web import UiEndpoint
from qserve.worker.base import WorkerStatus

__all__ = ["Processes", "RunningGateway", "Silence", "make_gateway"]

_log = logging.getLogger("qserve.supervisor")
_MODULE = "qserve.supervisor.gateway_process"
# uvicorn waits so long for answers that are still written when it is told to stop.
_LAST_ANSWERS_S = 1
_START_S = 60.0
_STOP_S = 10.0
_FIRST_PAUSE_S = 0.25
_LONGEST_PAUSE_S = 10.0
_WELL_AFTER_S = 10.0
_MAX_FAILURES = 10
_LOOK_S = 3.0
_MAX_SILENT_LOOKS = 10

ReportEvent = Callable[..., None]


@dataclass(frozen=True)
class Processes:
    """The gateway processes: their number, logs and traces.

    Attributes:
        count: 1: the process of the supervisor itself.
        traces: the tracer of a single process.
        traces_endpoint: the collector of several processes.
    """

    count: int = 1
    log_level: str = "warning"
    log_format: Literal["text", "json"] = "text"
    traces: Traces | None = None
    traces_endpoint: str | None = None


class RunningGateway(Protocol):
    """The gateway that serves the port, from `begin` to `stop`."""

    def begin(self) -> None:
        """Begin to accept; needs a running loop."""

    async def ready(self) -> None:
        """Returns when it accepts connections. Raises QserveError if it can't."""

    async def watch(self) -> None:
        """Runs as long as it serves; raises QserveError if it fails."""

    async def num_in_flight(self) -> int:
        """Requests that are being answered."""

    def leave(self) -> None:
        """Accept no more: another service does. Requests on open connections are answered, which then are closed."""

    async def stop(self) -> None:
        """Stop it; returns when it has ended."""


def make_gateway(
    processes: Processes,
    settings: GatewaySettings,
    workers: Sequence[WorkerStatus],
    service: Service,
    ui: UiEndpoint | None,
    listener: socket.socket,
    report: ReportEvent,
) -> RunningGateway:
    """The gateway in as many processes as are wanted. `report(name, event, **details)` hears what happens to them."""
    if processes.count == 1:
        return _InThisProcess(processes.traces, settings, workers, service, ui, listener)
    if processes.traces is not None:
        processes.traces.close()  # each process makes its own; this one only validated the address
    coordinator = Coordinator(settings, workers, service, ui, processes.count)
    return _InProcesses(processes, coordinator, listener, report)


class Silence:
    """Detects a hanging process: each reports several times a second. Pure.

    Counts checks, not seconds: if both processes were stopped (Ctrl-Z), it must not count as a hang.
    """

    def __init__(self) -> None:
        self._num_heard = -1
        self._num_silent = 0

    def lasts(self, num_heard: int) -> bool:
        """Call it every `_LOOK_S` with how much was heard so far."""
        self._num_silent = self._num_silent + 1 if num_heard == self._num_heard else 0
        self._num_heard = num_heard
        return self._num_silent >= _MAX_SILENT_LOOKS

    @property
    def is_silent(self) -> bool:
        """Whether nothing was heard between the last two checks."""
        return self._num_silent > 0


class _InThisProcess:
    def __init__(
        self,
        traces: Traces | None,
        settings: GatewaySettings,
        workers: Sequence[WorkerStatus],
        service: Service,
        ui: UiEndpoint | None,
        listener: socket.socket,
    ) -> None:
        self._traces = traces
        app = build_gateway(
            settings,
            workers,
            traces,
            ui,
            service.runs,
            service.restart,
            service.host,
            service.files,
            service.file_bounds,
            machine=service.machine,
            residency=service.residency,
            adapters=service.adapters,
        )
        self._in_flight = InFlight(app)
        host, port = listener.getsockname()[:2]
        self._server = build_server(self._in_flight, host, port, drain_timeout_s=_LAST_ANSWERS_S)
        self._listener = listener

    def begin(self) -> None:
        self._serving = asyncio.create_task(run_server(self._server, self._listener))

    async def ready(self) -> None:
        """Ready since `begin`."""

    async def watch(self) -> None:
        await asyncio.shield(self._serving)

    async def num_in_flight(self) -> int:
        return self._in_flight.num_requests

    def leave(self) -> None:
        self._server.leave()

    async def stop(self) -> None:
        self._server.should_exit = True
        await self._serving
        if self._traces is not None:
            await asyncio.to_thread(self._traces.close)  # it may have to wait for a collector


class _InProcesses:
    """Processes that share one listening socket: the least busy accepts first; waiting connections survive restarts."""

    def __init__(
        self, processes: Processes, coordinator: Coordinator, listener: socket.socket, report: ReportEvent
    ) -> None:
        self._processes = processes
        self._coordinator = coordinator
        self._listener = listener
        self._report = report
        self._is_stopping = False
        self._is_leaving = False
        # Hashes of prompts are compared between processes.
        self._environment = {**os.environ, "PYTHONHASHSEED": str(secrets.randbelow(1 << 32))}
        self._up = [asyncio.Event() for _ in range(processes.count)]

    def begin(self) -> None:
        self._coordinating = asyncio.create_task(self._coordinator.run())
        self._keeping = [asyncio.create_task(self._keep(index)) for index in range(self._processes.count)]

    async def ready(self) -> None:
        up = asyncio.create_task(self._all_up())
        await asyncio.wait([up, *self._keeping], return_when=asyncio.FIRST_COMPLETED, timeout=_START_S)
        if not up.done():
            up.cancel()
            self._raise_failure()
            raise WorkerFailed(f"the gateway's processes did not start within {_START_S:g} s; their log is above")

    async def _all_up(self) -> None:
        for up in self._up:
            await up.wait()

    async def watch(self) -> None:
        await asyncio.wait([self._coordinating, *self._keeping], return_when=asyncio.FIRST_COMPLETED)
        self._raise_failure()

    async def num_in_flight(self) -> int:
        return await self._coordinator.num_in_flight()

    def leave(self) -> None:
        self._is_leaving = True
        self._coordinator.leave()

    async def stop(self) -> None:
        self._is_stopping = True
        await self._coordinator.stop()
        await asyncio.wait(self._keeping, timeout=_STOP_S)
        for task in (*self._keeping, self._coordinating):
            task.cancel()
        await asyncio.gather(*self._keeping, self._coordinating, return_exceptions=True)
        self._listener.close()

    def _raise_failure(self) -> None:
        for task in (self._coordinating, *self._keeping):
            if task.done() and not task.cancelled():
                task.result()

    async def _keep(self, index: int) -> None:
        """Restarts one process whenever it ends. Raises WorkerFailed if restarts fail."""
        name, num_failures, pause_s = f"gateway-{index}", 0, _FIRST_PAUSE_S
        while True:
            began_s = time.monotonic()
            reason = await self._end_of(index)
            if self._is_stopping or self._is_leaving:
                return
            is_well = time.monotonic() - began_s > _WELL_AFTER_S
            num_failures, pause_s = (0, _FIRST_PAUSE_S) if is_well else (num_failures + 1, pause_s)
            if num_failures >= _MAX_FAILURES:
                raise WorkerFailed(f"{name} failed {num_failures} times in a row: {reason}")
            self._report(name, "restart", reason=reason, pause_s=pause_s)
            _log.warning("%s: %s; restarting in %.2f s", name, reason, pause_s)
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    async def _end_of(self, index: int) -> str:
        """Runs one process; returns how it ended."""
        try:
            return f"it ended with status {await self._run(index)}"
        except OSError as error:  # the machine has no process, memory or descriptor for it now
            return f"it can't be started ({error.strerror or error})"

    async def _run(self, index: int) -> int:
        """Runs one process; returns its exit status."""
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                process = await self._started(theirs)
            except BaseException:
                ours.close()
                raise
        try:
            member = await self._coordinator.join(f"gateway-{index}", ours, self._settings())
            return await self._until_exit(process, member, self._up[index])
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await process.wait()

    async def _started(self, control: socket.socket) -> asyncio.subprocess.Process:
        descriptors = (self._listener.fileno(), control.fileno())
        return await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            _MODULE,
            *map(str, descriptors),
            str(os.getpid()),
            pass_fds=descriptors,
            stdin=asyncio.subprocess.DEVNULL,
            start_new_session=True,
            env=self._environment,
        )

    def _settings(self) -> dict[str, Any]:
        one = self._processes
        host, port = self._listener.getsockname()[:2]
        return {
            "host": host,
            "port": port,
            "log_level": one.log_level,
            "log_format": one.log_format,
            "traces_endpoint": one.traces_endpoint,
        }

    async def _until_exit(self, process: asyncio.subprocess.Process, member: Member, up: asyncio.Event) -> int:
        is_up, ended = asyncio.create_task(member.is_up.wait()), asyncio.create_task(process.wait())
        try:
            await asyncio.wait([is_up, ended], return_when=asyncio.FIRST_COMPLETED)
            if is_up.done():
                up.set()
                if self._is_stopping or self._is_leaving:  # since it was started
                    member.channel.notify("stop" if self._is_stopping else "leave")
            silence = Silence()
            while not ended.done():
                await asyncio.wait([ended], timeout=_LOOK_S)
                if silence.lasts(member.num_heard) and not ended.done():
                    _log.warning("%s hangs and is ended", member.name)
                    process.kill()
                elif silence.is_silent and not ended.done():
                    _continue(process.pid, member.name)
            status = ended.result()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_STOP_S):
                    await member.gone.wait()  # what it said last is heard
            return status
        finally:
            is_up.cancel()
            ended.cancel()


def _continue(pid: int, name: str) -> None:
    """Of a process that somebody stopped (SIGSTOP): its streams would wait, and then end with it."""
    with contextlib.suppress(psutil.Error):
        process = psutil.Process(pid)
        if process.status() == psutil.STATUS_STOPPED:
            _log.warning("%s was stopped by a signal and is resumed", name)
            process.resume()
