"""The coordinator as a gateway process sees it: what `build_gateway` takes instead of its own parts."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from starlette.types import ASGIApp

from qserve.batches import FileBounds
from qserve.gateway.app import build_gateway
from qserve.gateway.http.in_flight import InFlight
from qserve.gateway.key_throttle import KeyThrottle
from qserve.gateway.processes.channel import Channel
from qserve.gateway.processes.key_spending import RemoteLedger
from qserve.gateway.processes.remote_adapters import RemoteAdapters
from qserve.gateway.processes.remote_replicas import RemoteReplicas
from qserve.gateway.processes.remote_runs import RemoteRuns
from qserve.gateway.processes.shared import Shared
from qserve.gateway.processes.signed_sessions import SignedSessions
from qserve.gateway.processes.statuses import status_of, update
from qserve.gateway.relay.replica_set import by_group
from qserve.gateway.relay.upstream import Upstream
from qserve.gateway.run_history import RunHistory
from qserve.gateway.settings import GatewaySettings
from qserve.gateway.telemetry.metrics import GatewayMetrics
from qserve.gateway.telemetry.record import RequestRecord
from qserve.gateway.telemetry.request_rows import row_of
from qserve.gateway.telemetry.tracing import Traces
from qserve.gateway.web import UiEndpoint
from qserve.runs import RunStore
from qserve.worker.base import WorkerStatus

__all__ = ["CoordinatorClient"]

_TELL_WORK_S = 0.4
_TELL_COUNTED_S = 2.0


class CoordinatorClient:
    """This process's side of the channel: `begin`, then serve `gateway(…)` until `stopped`."""

    def __init__(self, lost: Callable[[], None]) -> None:
        """`lost` is called when the coordinator, and with it the service, is gone."""
        self.stopped, self.left = asyncio.Event(), asyncio.Event()
        self._channel = Channel(self._hear, lost)
        self._configured: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._early: list[tuple[Channel, int, str, list[Any]]] | None = []
        """Messages that arrived before `gateway` was called; None afterwards."""
        self._metrics = GatewayMetrics()
        self._upstreams: list[Upstream] = []
        self._groups: list[RemoteReplicas] = []
        self._statuses: dict[str, WorkerStatus] = {}
        self._pieces: dict[str, int] = {}
        self._tasks: list[asyncio.Task[None]] = []

    async def begin(self, end: socket.socket) -> dict[str, Any]:
        """The coordinator's first message: the configuration of this process."""
        await asyncio.get_running_loop().create_unix_connection(lambda: self._channel, sock=end)
        return await self._configured

    def gateway(self, traces: Traces | None) -> ASGIApp:
        """The app, once `begin` has returned."""
        settings = self._configured.result()
        workers = [self._status(one) for one in settings["workers"]]
        self._throttle = _SharedThrottle(partial(self._channel.notify, "wrong key"))
        self._throttle.add(settings["wrong_keys"])
        self._sessions = SignedSessions(
            settings["session_secret"], settings["ended_sessions"], partial(self._channel.notify, "session ended")
        )
        shared = Shared(
            self._replicas,
            self._throttle,
            self._sessions,
            self._metrics,
            settings["salt_secret"],
            partial(self._channel.request, "metrics"),
            settings["started_unix_s"],
            RemoteRuns(self._channel),
            RemoteLedger(self._channel),
        )
        store = None if settings["store"] is None else RunStore(Path(settings["store"]))
        self._in_flight = InFlight(
            build_gateway(
                _settings_of(settings["settings"]),
                workers,
                traces,
                self._ui(settings["ui"]),
                RunHistory(store, settings["run"], self._keep),
                partial(self._channel.request, "restart"),
                partial(self._channel.request, "host"),
                None if settings["files"] is None else Path(settings["files"]),
                FileBounds(**settings["file_bounds"]),
                shared,
                residency=partial(self._channel.request, "residency") if settings["is_on_demand"] else None,
                adapters=RemoteAdapters(self._channel),
            )
        )
        early, self._early = self._early or [], None
        for message in early:
            self._hear(*message)
        return self._in_flight

    def serves(self) -> None:
        """Tell the coordinator that this process accepts connections."""
        self._channel.notify("up", os.getpid())
        self._tasks += [
            asyncio.create_task(_for_ever(self._tell_work, _TELL_WORK_S)),
            asyncio.create_task(_for_ever(self._send_counts, _TELL_COUNTED_S)),
        ]

    async def close(self) -> None:
        """Send the final counts."""
        for task in self._tasks:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        self._send_counts()
        self._channel.close()

    def _status(self, document: dict[str, Any]) -> WorkerStatus:
        status = status_of(document)
        self._statuses[status.name] = status
        if document["has_memory"]:
            status.memory = partial(self._channel.request, "memory", status.name)
        if document["has_latency"]:
            status.latency = partial(self._channel.request, "latency", status.name)
        return status

    def _ui(self, settings: dict[str, Any] | None) -> UiEndpoint | None:
        if settings is None:
            return None
        wanted = _UiRequest(partial(self._channel.notify, "ui wanted"))
        return UiEndpoint(self._status(settings["worker"]), settings["key"], settings["install"], wanted)

    def _replicas(self, upstreams: Sequence[Upstream]) -> Sequence[RemoteReplicas]:
        self._upstreams = list(upstreams)
        self._groups = [RemoteReplicas(replicas, self._channel) for replicas in by_group(upstreams)]
        return self._groups

    def _keep(self, record: RequestRecord) -> None:
        if (row := row_of(record)) is not None:
            self._channel.notify("request", row)

    # Messages from the coordinator.

    def _hear(self, channel: Channel, number: int, name: str, arguments: list[Any]) -> None:
        if name == "begin":
            self._configured.set_result(arguments[0])
        elif self._early is not None:
            self._early.append((channel, number, name, arguments))
        elif name == "in flight":
            channel.answer(number, self._in_flight.num_requests)
        elif name == "counted":
            channel.answer(number, self._metrics.counted())
        elif name == "worker":
            self._take_worker(arguments[0])
        elif name == "free":
            for replicas in self._groups:
                replicas.free, replicas.free_of = arguments[0][replicas.group]
        elif name == "wrong key":
            self._throttle.take(arguments[0])
        elif name == "session ended":
            self._sessions.has_ended(arguments[0])
        elif name == "leave":
            self.left.set()
        elif name == "stop":
            self.stopped.set()

    def _take_worker(self, document: dict[str, Any]) -> None:
        name = document["facts"]["name"]
        update(self._statuses[name], document)
        for upstream in self._upstreams:
            if upstream.name == name:
                upstream.observe()

    # Messages to the coordinator.

    def _tell_work(self) -> None:
        """Report waiting requests and received chunks, by which the supervisor detects a hang."""
        loads = {one.name: one.load for one in self._upstreams}
        pieces = {name: one.num_pieces - self._pieces.get(name, 0) for name, one in loads.items()}
        self._pieces = {name: one.num_pieces for name, one in loads.items()}
        self._channel.notify("work", {name: one.num_awaited for name, one in loads.items()}, pieces)

    def _send_counts(self) -> None:
        self._channel.notify("counted", self._metrics.counted())


class _SharedThrottle(KeyThrottle):
    """Shares wrong keys with the other processes."""

    def __init__(self, notify: Callable[[str], None]) -> None:
        super().__init__()
        self._notify = notify

    def count_wrong(self, address: str) -> None:
        super().count_wrong(address)
        self._notify(address)

    def take(self, address: str) -> None:
        """Count a wrong key that `address` sent to another process."""
        super().count_wrong(address)


class _UiRequest(asyncio.Event):
    """Ask the supervisor to start the UI."""

    def __init__(self, notify: Callable[[], None]) -> None:
        super().__init__()
        self._notify = notify

    def set(self) -> None:
        self._notify()


def _settings_of(document: dict[str, Any]) -> GatewaySettings:
    lists = {name: tuple(value) for name, value in document.items() if isinstance(value, list)}
    return GatewaySettings(**{**document, **lists})


async def _for_ever(notify: Callable[[], None], every_s: float) -> None:
    while True:
        await asyncio.sleep(every_s)
        notify()
