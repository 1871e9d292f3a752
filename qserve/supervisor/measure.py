"""Memory and work over the time of a run: often at first, then every five minutes, and once more at the end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from typing import Any

import psutil

from qserve.errors import QserveError
from qserve.gateway.telemetry.host_memory import HostMemory
from qserve.supervisor.record import RunRecord
from qserve.supervisor.runner import Worker
from qserve.worker.base import WorkerState

__all__ = ["measure_last", "measure_on", "reported_memory"]

_log = logging.getLogger("qserve.supervisor")
_FIRST_PAUSE_S = 5.0
_LONGEST_PAUSE_S = 300.0
_LAST_WAIT_S = 2.0


async def reported_memory(worker: Worker) -> dict[str, Any]:
    """What it holds; empty where it can't tell now: if it has just died, it is about to be started again."""
    try:
        return await worker.memory()
    except (QserveError, OSError, ValueError, psutil.Error) as error:
        _log.warning("%s worker: its memory could not be measured: %s", worker.status.name, error)
        return {}


async def measure_on(workers: Sequence[Worker], host: HostMemory, record: RunRecord) -> None:
    """Until it is cancelled. A worker that is not ready is left alone."""
    pause_s = _FIRST_PAUSE_S
    while True:
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        for worker in workers:
            if worker.status.state is WorkerState.READY:
                record.memory(worker.status.name, "serving", await reported_memory(worker))
                await _record_work(worker, record)
        await _keep_host(host, record, "serving")


async def measure_last(workers: Sequence[Worker], host: HostMemory, record: RunRecord) -> None:
    """Before they are ended; whoever does not answer within two seconds is not waited for."""
    alive = [one for one in workers if one.status.state in (WorkerState.READY, WorkerState.DRAINING)]
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_LAST_WAIT_S):
            held = await asyncio.gather(*(reported_memory(worker) for worker in alive))
            for worker, document in zip(alive, held, strict=True):
                record.memory(worker.status.name, "end", document)
            await _keep_host(host, record, "end")
            await asyncio.gather(*(_record_work(worker, record) for worker in alive))


async def _keep_host(host: HostMemory, record: RunRecord, moment: str) -> None:
    """Under the processes' names, as workers' memory is under theirs."""
    for one in await host.documents():
        if one["resident_bytes"] is not None:
            sources = {"resident_bytes": one["source"]}
            record.memory(one["process"], moment, {"resident_bytes": one["resident_bytes"], "sources": sources})


async def _record_work(worker: Worker, record: RunRecord) -> None:
    """What a reward model tells of its work since its start, and planned beside measured latency; the last counts."""
    if work := await worker.work():
        record.event(worker.status.name, "work", **work)
    if worker.status.latency is not None and (latency := await worker.status.latency()):
        record.event(worker.status.name, "latency", **latency)
