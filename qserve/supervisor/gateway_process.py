"""One of several gateway processes: `python -m qserve.supervisor.gateway_process LISTENER CONTROL PARENT`.

It gets everything else over CONTROL, the descriptor of a socket whose other side the supervisor holds.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from functools import partial

import uvloop

from qserve.gateway.http.server import build_server, run_server
from qserve.gateway.processes.coordinator_client import CoordinatorClient
from qserve.gateway.telemetry.tracing import to_collector
from qserve.supervisor import logs
from qserve.worker.process import end_with_parent

__all__ = ["main"]

_POLL_S = 0.01


def main() -> None:
    """Serve until the supervisor stops this process, or is gone."""
    listener, control, parent = map(int, sys.argv[1:])
    end_with_parent(signal.SIGKILL, parent)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: None)  # signals of the whole group are the supervisor's, which drains
    for descriptor in (listener, control):
        os.set_inheritable(descriptor, False)
    uvloop.run(_serve(socket.socket(fileno=listener), socket.socket(fileno=control)))


async def _serve(listener: socket.socket, control: socket.socket) -> None:
    coordinator = CoordinatorClient(lost=partial(os._exit, 1))  # without the service there is nothing to serve
    settings = await coordinator.begin(control)
    logs.set_up(settings["log_level"], settings["log_format"])
    traces = to_collector(settings["traces_endpoint"]) if settings["traces_endpoint"] else None
    server = build_server(coordinator.gateway(traces), settings["host"], settings["port"], drain_timeout_s=1)
    serving = asyncio.create_task(run_server(server, listener))
    while not server.started and not serving.done():
        await asyncio.sleep(_POLL_S)
    coordinator.serves()
    stopped, left = (asyncio.create_task(one.wait()) for one in (coordinator.stopped, coordinator.left))
    await asyncio.wait([stopped, serving, left], return_when=asyncio.FIRST_COMPLETED)
    if left.done() and not stopped.done():
        server.leave()
    left.cancel()
    await asyncio.wait([stopped, serving], return_when=asyncio.FIRST_COMPLETED)
    server.should_exit = True
    await serving
    await coordinator.close()
    if traces is not None:
        await asyncio.to_thread(traces.close)


if __name__ == "__main__":
    main()
