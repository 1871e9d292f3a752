"""Runs a service, from its plans to the last drained request."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from functools import partial
from pathlib import Path
from socket import socket
from typing import Any

from qserve.errors import PortInUse, QserveError, UsageError
from qserve.gateway.processes.coordinator import Service
from qserve.gateway.telemetry.host_memory import HostMemory
from qserve.supervisor import ports
from qserve.supervisor.adapters.shelf import AdapterShelf
from qserve.supervisor.deployment import ModelDeployment
from qserve.supervisor.draining import drain, finish
from qserve.supervisor.gateways import RunningGateway, make_gateway
from qserve.supervisor.measure import measure_last, measure_on, reported_memory
from qserve.supervisor.memory.watch import MemoryWatch, watch_of
from qserve.supervisor.options import UpOptions
from qserve.supervisor.private import PrivateFolder, private_folder
from qserve.supervisor.record import RunRecord
from qserve.supervisor.replicas import RollingRestart, start_all, watch_all
from qserve.supervisor.residency.residency import Residency
from qserve.supervisor.runner import Runner, Worker
from qserve.supervisor.sanity.check import Sanity
from qserve.supervisor.sanity.checks import Checks
from qserve.supervisor.screen import End, ReadyWorker, Screen, ready_rows
from qserve.supervisor.stop_signal import StopSignal
from qserve.supervisor.takeover.adopting import Adopting
from qserve.supervisor.takeover.offer import Offer
from qserve.supervisor.takeover.offered import Offered
from qserve.supervisor.takeover.taking import advised
from qserve.supervisor.this_machine import ThisMachine
from qserve.supervisor.web_ui import hosted_ui
from qserve.supervisor.worker import SupervisedWorker
from qserve.worker.base import WorkerState

__all__ = ["serve"]

_log = logging.getLogger("qserve.supervisor")
_THIS_MACHINE = ThisMachine()


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
                None if options.residents is None else Residency.of(workers, deployments, options.residents, record)
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
        if options.residents is not None:
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
