"""The last requests of a service: those that run when it stops, or when another one has taken over."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from qserve.supervisor.gateways import RunningGateway
from qserve.supervisor.runner import Worker
from qserve.supervisor.screen import Screen
from qserve.supervisor.stop_signal import StopSignal
from qserve.units import counted
from qserve.worker.base import WorkerState

__all__ = ["drain", "finish"]

_POLL_S = 0.05
# After a takeover: a client that has not used its open connection for so long is not about to send a request.
_QUIET_S = 2.0


async def drain(
    workers: Sequence[Worker], gateway: RunningGateway, drain_timeout_s: float, screen: Screen, stop: StopSignal
) -> int:
    """Let running requests finish; new ones get 503 meanwhile. Returns how many did not finish in time."""
    for worker in workers:
        worker.status.detail = "the service is stopping; running requests finish, new ones are refused"
        worker.status.state = WorkerState.DRAINING
    deadline = asyncio.get_running_loop().time() + drain_timeout_s
    if num_running := await gateway.num_in_flight():
        screen.note(
            f"stopping: {counted(num_running, 'running request')} may take {drain_timeout_s:g} s to finish; "
            "Ctrl-C again stops at once"
        )
    while num_running and not stop.second.is_set() and asyncio.get_running_loop().time() < deadline:
        await asyncio.sleep(_POLL_S)
        num_running = await gateway.num_in_flight()
    return num_running


async def finish(gateway: RunningGateway, drain_timeout_s: float, screen: Screen, stop: StopSignal) -> int:
    """After another service took over: answer what came here, on connections that are open as well.

    Each of them is closed after its next answer. Returns how many requests did not finish in time.
    """
    gateway.leave()
    screen.note(
        f"another service took over port and workers; running requests may take {drain_timeout_s:g} s to "
        "finish; Ctrl-C stops at once"
    )
    now_s = asyncio.get_running_loop().time
    deadline_s = now_s() + drain_timeout_s
    quiet_since_s, num_running = now_s(), await gateway.num_in_flight()
    while now_s() < deadline_s and now_s() - quiet_since_s < _QUIET_S and not stop.first.is_set():
        await asyncio.sleep(_POLL_S)
        num_running = await gateway.num_in_flight()
        if num_running:
            quiet_since_s = now_s()
    return num_running
