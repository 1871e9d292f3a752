"""The story of `qserve up`, from a plan to the last drained request."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import signal
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send

from qserve.core.checkpoint import Checkpoint
from qserve.engine.base import UnixAddress, WorkerEndpoint, WorkerState
from qserve.engine.process import WorkerSpec
from qserve.errors import QserveError, UsageError, WorkerFailed
from qserve.gateway.app import build_gateway
from qserve.gateway.server import build_server
from qserve.gateway.settings import GatewaySettings
from qserve.planner.plan import Plan
from qserve.up import ports
from qserve.up.screen import Screen, ready_rows
from qserve.up.worker import SupervisedWorker

__all__ = ["UpOptions", "serve"]

_log = logging.getLogger("qserve.up")
_POLL_S = 0.05


@dataclass(frozen=True)
class UpOptions:
    """What `qserve up` was told beyond the plan.

    Attributes:
        host: address to listen on; other than loopback needs a key.
        port: 0 takes a free one.
        gateway: keys, limits and origins.
        served_model_names: names that requests may use; the first is canonical.
        drain_timeout_s: how long running requests may take to finish when the service stops.
        log_folder: where workers' output goes.

    """

    host: str
    port: int
    gateway: GatewaySettings
    served_model_names: tuple[str, ...]
    drain_timeout_s: float
    log_folder: Path


@dataclass
class _InFlight:
    """Counts the requests that the gateway is answering, so that draining knows when it is done."""

    app: ASGIApp
    num_requests: int = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST":
            await self.app(scope, receive, send)
            return
        self.num_requests += 1
        try:
            await self.app(scope, receive, send)
        finally:
            self.num_requests -= 1


@dataclass
class _StopSignal:
    """SIGTERM or Ctrl-C: once to drain, twice to stop at once."""

    first: asyncio.Event = field(default_factory=asyncio.Event)
    second: asyncio.Event = field(default_factory=asyncio.Event)

    def install(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._arrive)

    def _arrive(self) -> None:
        (self.second if self.first.is_set() else self.first).set()


async def serve(checkpoint: Checkpoint, plan: Plan, options: UpOptions, screen: Screen) -> int:
    """Serve until told to stop; returns the exit status.

    0: stopped, every request that ran was answered. 1: stopped, but requests were cut off at the drain time-out.
    Raises PortInUse, UsageError, BrokenCheckpoint, DoesNotFit or WorkerFailed when it can't start or go on.
    """
    ports.check_exposure(options.host, options.gateway.keys)
    listener = ports.bind(options.host, options.port)
    url = f"http://{ports.url_host(options.host)}:{listener.getsockname()[1]}"
    stop = _StopSignal()
    stop.install()
    with tempfile.TemporaryDirectory(prefix="qserve-") as private:
        worker = _worker(checkpoint, plan, options, Path(private), screen)
        in_flight = _InFlight(build_gateway(options.gateway, [worker.endpoint]))
        server = build_server(in_flight, options.host, options.port, drain_timeout_s=1)
        serving = asyncio.create_task(_run_server(server, listener))
        try:
            status = await _live(worker, plan, url, options, screen, stop)
            if status is None:
                status = await _drain(worker, in_flight, options, screen, stop)
        finally:
            screen.end_progress()
            await worker.stop()
            server.should_exit = True
            await serving
    return status


async def _live(
    worker: SupervisedWorker, plan: Plan, url: str, options: UpOptions, screen: Screen, stop: _StopSignal
) -> int | None:
    """Start the worker and stay with it; None when the user wants to stop, before or after it was ready."""
    stopping = asyncio.create_task(stop.first.wait())
    try:
        starting = asyncio.create_task(worker.start())
        await asyncio.wait([starting, stopping], return_when=asyncio.FIRST_COMPLETED)
        if not starting.done():
            starting.cancel()
            return 0
        starting.result()
        memory: dict[str, Any] = await worker.get_json("/v1/qserve/memory")
        has_key, logs = bool(options.gateway.keys), options.log_folder
        screen.ready(ready_rows(url, worker.endpoint.models, plan, memory, has_key=has_key, logs=logs))
        watching = asyncio.create_task(worker.watch())
        await asyncio.wait([watching, stopping], return_when=asyncio.FIRST_COMPLETED)
        if watching.done():
            watching.result()
            raise WorkerFailed("the worker is gone")
        watching.cancel()
        return None
    finally:
        stopping.cancel()


async def _drain(
    worker: SupervisedWorker, in_flight: _InFlight, options: UpOptions, screen: Screen, stop: _StopSignal
) -> int:
    """Let running requests finish; new ones get 503 meanwhile."""
    worker.endpoint.detail = "the service is stopping; running requests finish, new ones are not taken"
    worker.endpoint.state = WorkerState.DRAINING
    deadline = asyncio.get_running_loop().time() + options.drain_timeout_s
    if in_flight.num_requests:
        screen.note(
            f"stopping: {in_flight.num_requests} running requests may take {options.drain_timeout_s:g} s to finish; "
            "Ctrl-C again stops at once"
        )
    while in_flight.num_requests and not stop.second.is_set() and asyncio.get_running_loop().time() < deadline:
        await asyncio.sleep(_POLL_S)
    if in_flight.num_requests:
        screen.note(f"stopped; {in_flight.num_requests} requests were cut off")
        return 1
    screen.note("stopped; every request was answered")
    return 0


def _worker(checkpoint: Checkpoint, plan: Plan, options: UpOptions, private: Path, screen: Screen) -> SupervisedWorker:
    assert checkpoint.folder is not None, "resolve and fetch the checkpoint before serving it"
    socket = private / "chat.sock"
    key = secrets.token_urlsafe(32)
    names = options.served_model_names
    endpoint = WorkerEndpoint(
        "chat", names, UnixAddress(socket), key, plan.workload.max_num_seqs, plan.workload.max_model_len
    )
    spec = WorkerSpec(checkpoint.folder.resolve(), names, plan, socket, key)
    _make_folder(options.log_folder)
    return SupervisedWorker(
        endpoint,
        spec,
        private / "chat.json",
        options.log_folder / "chat.log",
        lambda name: screen.phase(f"chat: {name}"),
    )


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"the folder for logs, {folder}, can't be made: {error.strerror}. Choose a place of yours with --state-dir"
        ) from error


async def _run_server(server: uvicorn.Server, listener: Any) -> None:
    """uvicorn without its signal handlers: stopping is ours to decide."""

    @contextlib.contextmanager
    def leave_signals_alone() -> Iterator[None]:
        yield

    server.capture_signals = leave_signals_alone  # type: ignore[method-assign]
    try:
        await server.serve(sockets=[listener])
    except SystemExit as error:  # uvicorn's way to say that it could not start
        raise QserveError("the gateway could not start; its log line above says why") from error
