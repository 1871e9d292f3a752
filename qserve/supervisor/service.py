"""Runs a service, from its plans to the last drained request."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from socket import socket
from typing import Any

from qserve.batches import FileBounds
from qserve.core.hardware import HostProcess
from qserve.errors import PortInUse, QserveError, UsageError
from qserve.gateway.processes.coordinator import Service
from qserve.gateway.settings import GatewaySettings
from qserve.gateway.telemetry.host_memory import HostMemory
from qserve.supervisor import ports
from qserve.supervisor.adapters.shelf import AdapterShelf
from qserve.supervisor.deployment import ModelDeployment
from qserve.supervisor.draining import drain, finish
from qserve.supervisor.gateways import Processes, RunningGateway, make_gateway
from qserve.supervisor.measure import measure_last, measure_on, reported_memory
from qserve.supervisor.memory.watch import MemoryBounds, MemoryWatch, watch_of
from qserve.supervisor.private import PrivateFolder, private_folder
from qserve.supervisor.record import Recording, RunRecord
from qserve.supervisor.replicas import RollingRestart, start_all, watch_all
from qserve.supervisor.residency.residency import Residency, Turns
from qserve.supervisor.runner import Runner, Worker
from qserve.supervisor.sanity import Sanity
from qserve.supervisor.sanity_checks import Checks
from qserve.supervisor.screen import End, ReadyWorker, Screen, ready_rows
from qserve.supervisor.stop_signal import StopSignal
from qserve.supervisor.takeover.adopting import Adopting
from qserve.supervisor.takeover.launched import Launched
from qserve.supervisor.takeover.offer import Offer
from qserve.supervisor.takeover.offered import Offered
from qserve.supervisor.takeover.taking import Taking, advised
from qserve.supervisor.this_machine import ThisMachine
from qserve.supervisor.web_ui import hosted_ui
from qserve.supervisor.worker import SupervisedWorker
from qserve.worker.base import WorkerState

__all__ = ["UpOptions", "serve"]

_log = logging.getLogger("qserve.supervisor")
_THIS_MACHINE = ThisMachine()


@dataclass(frozen=True)
class UpOptions:
    """The options of `qserve up` beyond the plans.

    Attributes:
        host: address to listen on; other than loopback needs a key.
        port: 0 takes a free one.
        gateway: keys, limits and origins.
        drain_timeout_s: how long running requests may take to finish when the service stops.
        run_folder: where workers' output goes.
        recording: how the run is written down; None: not at all.
        ready_file: written as soon as the service is ready, for programs: url, pid, run_folder.
        processes: number, logs and traces of gateway processes.
        ui: the web UI at once (True), when `/` is first opened (None), or never (False).
        strict: a chat model that serves noise ends the service (`sanity.py`).
        start_timeout_s: how long a worker's start may show no progress; None: by phase (`start_watch.py`).
        beside: planned memory of the processes without a model.
        memory: what of the machine's memory stays free.
        files: the folder of files and batches; None: none are kept.
        file_bounds: of that folder.
        launched: what the workers are started from, for a service that takes over from this one.
        taking: the service that this one takes over from, with its port and its workers; None: from none.
        residency: the budget and the rules of models that take turns in memory; None: there are none.

    """

    host: str
    port: int
    gateway: GatewaySettings
    drain_timeout_s: float
    run_folder: Path
    ready_file: Path | None = None
    processes: Processes = field(default_factory=Processes)
    ui: bool | None = None
    recording: Recording | None = None
    strict: bool = False
    start_timeout_s: float | None = None
    beside: tuple[HostProcess, ...] = ()
    memory: MemoryBounds = field(default_factory=MemoryBounds)
    files: Path | None = None
    file_bounds: FileBounds = field(default_factory=FileBounds)
    launched: Launched = field(default_factory=Launched)
    taking: Taking | None = None
    residency: Turns | None = None


async def serve(
    deployments: Sequence[ModelDeployment], options: UpOptions, screen: Screen, runner: Runner = _THIS_MACHINE
) -> int:
    """Serve on workers of `runner` until stopped; returns the exit status.

    0: stopped, every request was answered. 1: requests were cut off, by a worker that ended or by the stop.
    With `options.taking` it serves the models of that service, on its workers.
    Raises PortInUse, UsageError, BrokenCheckpoint, DoesNotFit or WorkerFailed when it can't start or continue.
    """
    ports.check_exposure(options.host, has_key=options.gateway.needs_key)
    if options.taking is not None:
        with contextlib.closing(options.taking) as taking:
            runner = await Adopting.begun(taking)
            return await _recorded(runner.deployments, options, screen, runner.listener, runner)
    try:
        listener = ports.bind(options.host, options.port)
    except PortInUse as error:
        raise await asyncio.to_thread(advised, error, options.port) from None
    return await _recorded(deployments, options, screen, listener, runner)


async def _recorded(
    deployments: Sequence[ModelDeployment], options: UpOptions, screen: Screen, listener: socket, runner: Runner
) -> int:
    url = f"http://{ports.url_host(options.host)}:{listener.getsockname()[1]}"
    stop = StopSignal()
    stop.install()
    record = RunRecord(options.run_folder, options.recording)
    record.listens_at(url)
    status = QserveError.exit_status
    try:
        status = await _serve(deployments, options, screen, record, listener, url, stop, runner)
    except QserveError as error:
        status = error.exit_status
        record.event("", "failed", reason=str(error))
        raise
    finally:
        await asyncio.to_thread(record.end, status)
    return status


async def _serve(
    deployments: Sequence[ModelDeployment],
    options: UpOptions,
    screen: Screen,
    record: RunRecord,
    listener: socket,
    url: str,
    stop: StopSignal,
    runner: Runner,
) -> int:
    adopting = runner if isinstance(runner, Adopting) else None
    with private_folder() as private, private_folder() if adopting is None else adopting.folder() as folder:
        async with hosted_ui(options.ui, url, options.gateway, private.path, record) as ui:
            workers = _workers(deployments, folder.path, record, screen, runner)
            for worker in workers:
                worker.start_limit_s = options.start_timeout_s
            statuses = [worker.status for worker in workers]
            host = HostMemory(options.beside)
            rolling = RollingRestart(workers, None if adopting is None else adopting.gone)
            watch = watch_of(workers, options.memory, record)
            stop.on_hangup(rolling.begin)
            residency = (
                None if options.residency is None else Residency.of(workers, deployments, options.residency, record)
            )
            shelf = AdapterShelf(deployments, workers, folder.path / "adapters", record.event)
            service = Service(
                rolling.begin,
                host.documents,
                record.row,
                record.kept,
                options.files,
                options.file_bounds,
                None if watch is None else watch.shown,
                None if residency is None else residency.control,
                shelf,
            )
            if adopting is not None:
                await adopting.adopt()
            gateway = make_gateway(options.processes, options.gateway, statuses, service, ui, listener, record.event)
            gateway.begin()
            if watch is not None:
                watch.begin()
            end, offer = None, _offer(deployments, workers, listener, folder, watch, options, rolling)
            try:
                async with offer.open_in(private.path):
                    is_live = await _live(
                        workers, gateway, host, url, options, record, screen, stop, runner, offer, residency
                    )
                if offer.has_left:
                    record.event("", "handed_over")
                    num_left = await finish(gateway, options.drain_timeout_s, screen, stop)
                    end = End(record.num_cut_off, num_left)
                elif is_live:
                    num_left = await drain(workers, gateway, options.drain_timeout_s, screen, stop)
                    end = End(record.num_cut_off, num_left)
            finally:
                screen.end_progress()
                if watch is not None:
                    await watch.stop()
                await rolling.stop()
                if residency is not None:
                    await residency.stop()
                await measure_last(workers, host, record)
                are_ours = (adopting is None or adopting.has_left) and not offer.has_left
                await asyncio.gather(*(_let_go(worker, are_ours=are_ours) for worker in workers))
                await gateway.stop()
    if end is None:
        screen.note("stopped before it was ready")
        return 0
    for line in end.lines(options.run_folder.name):
        screen.note(line)
    return end.exit_status


async def _let_go(worker: Worker, *, are_ours: bool) -> None:
    """End it, unless it is another service's."""
    if are_ours or not isinstance(worker, SupervisedWorker):
        await worker.stop()
    else:
        await worker.let_go()


def _offer(
    deployments: Sequence[ModelDeployment],
    workers: Sequence[Worker],
    listener: socket,
    folder: PrivateFolder,
    watch: MemoryWatch | None,
    options: UpOptions,
    rolling: RollingRestart,
) -> Offer:
    """What a service that takes over from this one sees; workers of a cluster are not handed over."""
    here = [worker for worker in workers if isinstance(worker, SupervisedWorker)]
    run = options.run_folder.name

    def busy() -> str:
        if len(here) < len(workers):
            return "its workers run on a cluster"
        if options.residency is not None:
            return "its models are loaded on demand"
        return "a rolling restart is running; try again when it is over" if rolling.is_running else ""

    offered = Offered(deployments, here, listener, folder, watch, run, options.launched, busy)
    return Offer(offered)


def _workers(
    deployments: Sequence[ModelDeployment], private: Path, record: RunRecord, screen: Screen, runner: Runner
) -> list[Worker]:
    """The workers, chat models first: judges may ask them."""
    workers: list[Worker] = []
    for one in deployments:
        chats = [worker.status.facts for worker in workers if worker.status.role == "chat"]
        chat = chats[one.index % len(chats)] if chats and one.role == "reward" else None
        workers.append(runner.worker(one, private, record, screen, chat))
    return workers


async def _live(
    workers: list[Worker],
    gateway: RunningGateway,
    host: HostMemory,
    url: str,
    options: UpOptions,
    record: RunRecord,
    screen: Screen,
    stop: StopSignal,
    runner: Runner,
    offer: Offer,
    residency: Residency | None,
) -> bool:
    """Start the workers and watch them until the user stops the service, or another one has taken them over.

    False: that was before they were ready.
    """

    async def start() -> None:
        if isinstance(runner, Adopting):
            await gateway.ready()
            await runner.leave()
            runner.tell(record, screen)
            return
        await (start_all(workers) if residency is None else residency.start())
        await gateway.ready()

    if not await _unless_stopped(start(), stop):
        return False
    running = [worker for worker in workers if worker.status.state is not WorkerState.IDLE]
    memory = [await reported_memory(worker) for worker in running]
    for worker, held in zip(running, memory, strict=True):
        record.memory(worker.status.name, "ready", held)
    checks = Checks(running, record, screen)

    async def tell_ready() -> None:
        found = await checks.first(strict=options.strict)
        shown = [_ready_worker(worker, held, found) for worker, held in zip(running, memory, strict=True)]
        has_key, has_ui = options.gateway.needs_key, options.ui is not False
        rows = ready_rows(
            url,
            shown,
            await host.documents(),
            [worker.status.facts for worker in workers if worker not in running],
            has_key=has_key,
            has_ui=has_ui,
            logs=options.run_folder,
            is_verbose=screen.is_verbose,
        )
        screen.ready(rows)

    try:
        if await _unless_stopped(tell_ready(), stop):
            after = partial(_after_checks, checks, url, options)
            watching = _watch(workers, gateway, host, record, after, runner, offer, residency)
            await _unless_stopped(watching, stop)
    finally:
        await checks.close()
    return True


async def _after_checks(checks: Checks, url: str, options: UpOptions) -> None:
    """Write the ready file once the start is complete, so that measurements do not include it."""
    await checks.rest()
    if options.ready_file is not None:
        _write_ready_file(options.ready_file, url, options.run_folder)


def _ready_worker(worker: Worker, held: dict[str, Any], found: Mapping[str, Sanity]) -> ReadyWorker:
    facts, plan = worker.status.facts, worker.plan
    assert plan is not None, "a model is served by a plan"
    sanity = found.get(facts.name)
    return ReadyWorker(
        facts.role, facts.models, plan, held, worker.phases_s, worker.notes, sanity, facts.name, facts.group
    )


def _write_ready_file(file: Path, url: str, run_folder: Path) -> None:
    """Written atomically: a program that waits for the file must not read half of it."""
    part = file.with_name(f"{file.name}.part")
    try:
        part.write_text(json.dumps({"url": url, "pid": os.getpid(), "run_folder": str(run_folder)}))
        part.replace(file)
    except OSError as error:
        raise UsageError(f"--ready-file {file} can't be written: {error.strerror}") from error


async def _unless_stopped(work: Coroutine[Any, Any, None], stop: StopSignal) -> bool:
    """Whether `work` finished before a stop was requested. Raises its errors."""
    working = asyncio.create_task(work)
    stopping = asyncio.create_task(stop.first.wait())
    try:
        await asyncio.wait([working, stopping], return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            working.result()
            return True
        return False
    finally:
        stopping.cancel()
        working.cancel()
        with contextlib.suppress(asyncio.CancelledError, QserveError):
            await working


async def _watch(
    workers: list[Worker],
    gateway: RunningGateway,
    host: HostMemory,
    record: RunRecord,
    after_ready: Callable[[], Coroutine[Any, Any, None]],
    runner: Runner,
    offer: Offer,
    residency: Residency | None,
) -> None:
    """Watch, measure and scale workers and gateway, and finish the start; returns when they were handed over."""

    async def keep_workers() -> None:
        beside = [asyncio.create_task(measure_on(workers, host, record)), asyncio.create_task(runner.scale(workers))]
        try:
            await watch_all(workers, *(() if residency is None else (residency.run,)))
        finally:
            await _cancelled(beside)

    handing = asyncio.create_task(offer.watch(keep_workers))
    running = {handing, asyncio.create_task(gateway.watch()), asyncio.create_task(after_ready())}
    try:
        while not handing.done():
            done, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
            running -= done
    finally:
        await _cancelled(running)


async def _cancelled(tasks: Collection[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
