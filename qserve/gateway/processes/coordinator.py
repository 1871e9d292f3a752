"""Coordinates the gateway processes of one port, in the process of `qserve up`."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import socket
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from qserve.batches import FileBounds
from qserve.errors import QserveError
from qserve.gateway.adapters import AdapterControl
from qserve.gateway.administration import Restart, begun
from qserve.gateway.auth import owners_of
from qserve.gateway.endpoints import HostTeller
from qserve.gateway.key_throttle import KeyThrottle
from qserve.gateway.keys.book import KeyBook, LocalLedger, NamedKeys
from qserve.gateway.processes.channel import Channel
from qserve.gateway.processes.hosted_runs import HostedRuns, MemberRuns
from qserve.gateway.processes.key_spending import MemberSpending
from qserve.gateway.processes.member import Member
from qserve.gateway.processes.shared import exposition_of
from qserve.gateway.processes.signed_sessions import MOST_ENDED
from qserve.gateway.processes.statuses import document_of
from qserve.gateway.relay.replica_set import replica_sets
from qserve.gateway.relay.upstream import Upstream
from qserve.gateway.residency import ResidencyControl, nothing_on_demand
from qserve.gateway.run_history import RunHistory
from qserve.gateway.settings import GatewaySettings
from qserve.gateway.telemetry.machine_memory import MachineMemory
from qserve.gateway.telemetry.metrics import GatewayMetrics
from qserve.gateway.web import UiEndpoint
from qserve.wire.errors import ApiError, internal_error
from qserve.worker.base import WorkerStatus

__all__ = ["Coordinator", "Service"]

_log = logging.getLogger("qserve.gateway")
_PUSH_S = 0.02
_ANSWER_S = 1.0


@dataclass(frozen=True)
class Service:
    """The service around the gateway processes.

    Attributes:
        restart, host: as `build_gateway` has them.
        keep: stores a finished request, as the values of a `RequestRow`.
        runs: the store that is shown.
        files, file_bounds, machine, residency, adapters: as `build_gateway` has them.
    """

    restart: Restart
    host: HostTeller
    keep: Callable[[Sequence[Any]], None]
    runs: RunHistory
    files: Path | None = None
    file_bounds: FileBounds = field(default_factory=FileBounds)
    machine: MachineMemory | None = None
    residency: ResidencyControl | None = None
    adapters: AdapterControl | None = None


class Coordinator:
    """Chooses replicas and grants slots for all gateway processes, and holds their shared state."""

    def __init__(
        self,
        settings: GatewaySettings,
        workers: Sequence[WorkerStatus],
        service: Service,
        ui: UiEndpoint | None,
        num_processes: int,
    ) -> None:
        """Create within a running loop, then call `run`."""
        self._settings = replace(settings, max_bodies_bytes=settings.max_bodies_bytes // num_processes)
        self._service = service
        self._ui = ui
        self._upstreams = [Upstream(worker, settings) for worker in workers]
        self._watched = [*self._upstreams, *([] if ui is None else [Upstream(ui.worker, settings)])]
        self._groups = {one.group: one for one in replica_sets(self._upstreams)}
        self._throttle = KeyThrottle()
        self._session_secret, self._salt_secret = secrets.token_hex(32), secrets.token_hex(32)
        self._ended_sessions: dict[str, None] = {}
        self._members: list[Member] = []
        self._answers: set[asyncio.Task[None]] = set()
        self._of_ended = GatewayMetrics()  # counts of ended processes
        self._book = KeyBook(Path(settings.key_file)) if settings.key_file else None
        self._ledger = None if self._book is None else LocalLedger(self._book, service.runs.used_today())
        keys = None
        if self._book is not None and self._ledger is not None:
            beside = () if ui is None else (ui.api_key,)
            others = owners_of((*settings.keys, *settings.admin_keys, *beside))
            keys = NamedKeys(self._book, self._ledger, others)
        self._hosted = HostedRuns(self._settings, list(self._groups.values()), self._salt_secret, service.runs, keys)
        self._of_members: Counter[str] = Counter()
        self._started_unix_s = int(time.time())

    @property
    def members(self) -> Sequence[Member]:
        """The running processes."""
        return self._members

    async def run(self) -> None:
        """Sends state changes of the workers to all processes, and runs background responses, for ever."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._hosted.runs.run())
            tasks.create_task(self._push_states())
            if self._book is not None:
                tasks.create_task(self._book.follow())

    async def _push_states(self) -> None:
        next_look_s = 0.0
        while True:
            for member in self._members:
                member.push_all(self._watched)
            if time.monotonic() >= next_look_s:
                next_look_s = time.monotonic() + self._settings.watch_interval_s
                for replicas in self._groups.values():
                    replicas.observe()
                free = {group: replicas.all_free_in_background() for group, replicas in self._groups.items()}
                for member in self._members:
                    member.channel.notify("free", free)
            await asyncio.sleep(_PUSH_S)

    async def join(self, name: str, end: socket.socket, details: dict[str, Any]) -> Member:
        """Add the process at the other side of `end`; `details`: further fields of its first message."""
        channel = Channel(self._hear, lambda: self._leave(member))
        member = Member(name, channel, self._groups, MemberRuns(self._hosted.runs), MemberSpending(self._ledger))
        await asyncio.get_running_loop().create_unix_connection(lambda: channel, sock=end)
        self._members.append(member)
        member.knows(self._watched)
        channel.notify("begin", {**self._beginning(), **details})
        return member

    async def num_in_flight(self) -> int:
        """Requests in flight in all processes; at least one for each process that does not answer in time."""
        members = list(self._members)
        counts = await asyncio.gather(*(self._asked(one, "in flight", None) for one in members))
        for member, count in zip(members, counts, strict=True):
            member.num_in_flight = max(1, member.num_in_flight) if count is None else count
        return sum(one.num_in_flight for one in self._members)

    def leave(self) -> None:
        """The processes accept no more connections; they serve those that are open."""
        for member in self._members:
            member.channel.notify("leave")

    async def stop(self) -> None:
        """Stop the processes, after they have sent their counts."""
        await self._collect()
        for member in self._members:
            member.channel.notify("stop")
        await self._hosted.close()
        for upstream in self._upstreams:
            upstream.client.close()

    def _beginning(self) -> dict[str, Any]:
        ui, runs = self._ui, self._service.runs
        return {
            "settings": asdict(self._settings),
            "workers": [document_of(one.status) for one in self._upstreams],
            "ui": None if ui is None else {"worker": document_of(ui.worker), "key": ui.api_key, "install": ui.install},
            "store": None if runs.store is None else str(runs.store.path),
            "run": runs.run_id,
            "files": None if self._service.files is None else str(self._service.files),
            "file_bounds": asdict(self._service.file_bounds),
            "session_secret": self._session_secret,
            "salt_secret": self._salt_secret,
            "is_on_demand": self._service.residency is not None,
            "ended_sessions": list(self._ended_sessions),
            "wrong_keys": self._throttle.counts(),
            "started_unix_s": self._started_unix_s,
        }

    def _leave(self, member: Member) -> None:
        member.leave()
        self._members.remove(member)
        self._of_ended.add(member.metrics)
        self._sum_awaited()
        member.gone.set()

    # Messages from the processes.

    def _hear(self, channel: Channel, number: int, name: str, arguments: list[Any]) -> None:
        member = next((one for one in self._members if one.channel is channel), None)
        if member is None:
            return
        member.num_heard += 1
        if name == "slot":
            member.enter(number, arguments)
        elif number:
            answer = asyncio.create_task(self._answer(channel, number, self._asks(member)[name](*arguments)))
            self._answers.add(answer)  # the event loop keeps only weak references to tasks
            answer.add_done_callback(self._answers.discard)
        else:
            self._take(member, name, arguments)

    def _take(self, member: Member, name: str, arguments: list[Any]) -> None:
        takes: dict[str, Callable[..., None]] = {
            "left": member.left,
            "begun": member.begun,
            "up": member.up,
            "counted": member.counted,
            "response dropped": member.runs.drop,
            "spent": member.spending.end,
            "request": self._service.keep,
            "work": partial(self._take_work, member),
            "wrong key": partial(self._take_wrong_key, member),
            "session ended": partial(self._take_ended_session, member),
            "ui wanted": self._want_ui,
        }
        takes[name](*arguments)

    def _take_wrong_key(self, member: Member, address: str) -> None:
        self._throttle.count_wrong(address)
        self._notify_others(member, "wrong key", address)

    def _take_ended_session(self, member: Member, digest: str) -> None:
        self._ended_sessions[digest] = None
        while len(self._ended_sessions) > MOST_ENDED:
            del self._ended_sessions[next(iter(self._ended_sessions))]
        self._notify_others(member, "session ended", digest)

    def _want_ui(self) -> None:
        if self._ui is not None:
            self._ui.wanted.set()

    def _asks(self, member: Member) -> dict[str, Callable[..., Awaitable[Any]]]:
        return {
            "died": self._died,
            "introduced": self._introduced,
            "response": member.runs.answer,
            "spend": member.spending.begin,
            "usage": member.spending.document,
            "restart": self._restart,
            "residency": self._residency,
            "adapters": self._adapters,
            "host": self._service.host,
            "metrics": self._metrics,
            "memory": self._memory,
            "latency": self._latency,
        }

    async def _answer(self, channel: Channel, number: int, work: Awaitable[Any]) -> None:
        try:
            channel.answer(number, await work)
        except ApiError as error:
            channel.refuse(number, error)
        except (QserveError, OSError, ValueError, psutil.Error) as error:
            channel.refuse(number, ApiError(502, str(error), "worker_error"))
        except Exception:
            _log.exception("a gateway process could not be answered")
            channel.refuse(number, internal_error())

    async def _died(self, group: str, digest: int, life: list[Any]) -> bool:
        return self._groups[group].poison.died(digest, tuple(life))

    async def _introduced(self, group: str) -> None:
        await self._groups[group].introduced()

    async def _restart(self) -> Sequence[str] | None:
        return await begun(self._service.restart)

    async def _residency(self, action: str, name: str) -> Any:
        if self._service.residency is None:
            raise nothing_on_demand()
        return await self._service.residency(action, name)

    async def _adapters(self, method: str, *arguments: Any) -> Any:
        """`AdapterControl`; every process knows the new names before any client hears of them."""
        control = self._service.adapters
        assert control is not None, "a service with processes supervises its workers"
        made = await getattr(control, method)(*arguments)
        for member in self._members:
            member.push_all(self._watched)
        return made

    async def _memory(self, name: str) -> Any:
        measure = self._status(name).memory
        assert measure is not None, "only workers with a memory are asked"
        return dict(await measure())

    async def _latency(self, name: str) -> Any:
        measure = self._status(name).latency
        assert measure is not None, "only workers with a latency are asked"
        return dict(await measure())

    def _status(self, name: str) -> WorkerStatus:
        return next(one.status for one in self._upstreams if one.name == name)

    # Sums.

    async def _metrics(self) -> str:
        """Prometheus text: sums over all processes, ended ones included, and the gauges of the workers."""
        await self._collect()
        total = GatewayMetrics()
        total.watch_workers(self._upstreams)
        if self._service.machine is not None:
            total.watch_machine(self._service.machine)
        own = (self._of_ended.counted(), self._hosted.metrics.counted())
        for counted in (*own, *(one.metrics for one in self._members)):
            total.add(counted)
        if self._book is not None:
            total.key_names = self._book.names
        total.background_bytes = lambda: self._hosted.runs.num_bytes
        pids = [one.pid for one in self._members if one.pid is not None]
        total.num_processes = lambda: len(pids)
        total.resident_bytes = lambda: sum(map(_resident_bytes, (os.getpid(), *pids)))
        return await exposition_of(total, self._upstreams)

    async def _collect(self) -> None:
        """Current counts of each process; the last ones of a process that does not answer within a second."""
        members = list(self._members)
        counted = await asyncio.gather(*(self._asked(one, "counted", None) for one in members))
        for member, series in zip(members, counted, strict=True):
            if series is None:
                self._of_ended.count_error("gateway_process_unreachable")
            else:
                member.metrics = series

    async def _asked(self, member: Member, what: str, instead: Any) -> Any:
        with contextlib.suppress(TimeoutError, ConnectionError):
            async with asyncio.timeout(_ANSWER_S):
                return await member.channel.request(what)
        return instead

    def _take_work(self, member: Member, num_awaited: dict[str, int], num_pieces: dict[str, int]) -> None:
        """Updates waiting requests and received chunks per worker, by which the supervisor detects a hang."""
        member.num_awaited = num_awaited
        for name, count in num_pieces.items():
            self._status(name).load.num_pieces += count
        self._sum_awaited()

    def _sum_awaited(self) -> None:
        awaited: Counter[str] = Counter()
        for member in self._members:
            awaited.update(member.num_awaited)
        for upstream in self._upstreams:  # background responses count there themselves
            upstream.load.num_awaited += awaited[upstream.name] - self._of_members[upstream.name]
        self._of_members = awaited

    def _notify_others(self, member: Member, *message: Any) -> None:
        for other in self._members:
            if other is not member:
                other.channel.notify(*message)


def _resident_bytes(pid: int) -> int:
    try:
        return int(psutil.Process(pid).memory_info().rss)
    except psutil.Error:
        return 0  # it has just ended
