"""Detects unhealthy workers whose process runs: failed health checks, no answer, no progress."""

from __future__ import annotations

import asyncio

from qserve.supervisor.liveness import activity, stall
from qserve.worker.base import WorkerStatus
from qserve.worker.launch import Launch, SendRequest

__all__ = ["INTERVAL_S", "MISSED_CHECKS", "until_hung", "until_sick"]

# Interval of checks, and failed checks in a row that end a worker, also on another machine.
INTERVAL_S = 2.0
MISSED_CHECKS = 3


async def until_sick(launch: Launch, send: SendRequest) -> str:
    """Returns the reason once the worker reports that it is unwell, or has not answered for long."""
    missed = 0
    while True:
        await asyncio.sleep(INTERVAL_S)
        is_well = await launch.is_well(send)
        missed = 0 if is_well else missed + 1
        if is_well is False:
            return "reported that it is unhealthy"
        if missed >= MISSED_CHECKS:
            return f"did not answer {missed} health checks"


async def until_hung(launch: Launch, send: SendRequest, status: WorkerStatus, pid: int) -> str:
    """Returns the reason once requests wait and the worker makes no progress (`stall.py`)."""
    watch, before = stall.StallWatch(), None
    while True:
        await asyncio.sleep(stall.INTERVAL_S)
        is_working = True
        if status.load.num_awaited:  # else there is nothing to find out, and an idle service costs nothing
            pids = await asyncio.to_thread(launch.computing, pid)
            now = await asyncio.to_thread(activity.activity_of, pids)
            is_working = before is None or now.worked_since(before, stall.INTERVAL_S) or activity.is_running(pids)
            before = now
        progress = await launch.progress(send) if watch.is_suspicious else None
        load = status.load
        reason = watch.see(stall.Observation(load.num_awaited, load.num_pieces, progress, is_working))
        if reason is not None:
            return reason
