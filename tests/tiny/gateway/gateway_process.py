"""A gateway in a process of its own, with few descriptors:  python gateway_process.py SOCKET WORKER_KEY KEY DESCRIPTORS

Prints its port.
"""

from __future__ import annotations

import asyncio
import resource
import sys
from pathlib import Path

import uvloop

from qserve.gateway.app import build_gateway
from qserve.gateway.http.server import build_server
from qserve.gateway.settings import GatewaySettings
from qserve.worker.base import UnixAddress, WorkerFacts, WorkerState, WorkerStatus


async def _serve(socket: Path, worker_key: str, key: str) -> None:
    status = WorkerStatus(
        WorkerFacts(
            name="chat",
            models=("fake",),
            address=UnixAddress(socket),
            key=worker_key,
            max_num_seqs=256,
            max_model_len=4096,
        ),
        state=WorkerState.READY,
        detail="",
    )
    server = build_server(build_gateway(GatewaySettings(keys=(key,)), [status]), "127.0.0.1", 0, drain_timeout_s=1)
    serving = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.01)
    print(server.servers[0].sockets[0].getsockname()[1], flush=True)
    await serving


if __name__ == "__main__":
    num_descriptors = int(sys.argv[4])
    resource.setrlimit(resource.RLIMIT_NOFILE, (num_descriptors, num_descriptors))
    uvloop.run(_serve(Path(sys.argv[1]), sys.argv[2], sys.argv[3]))
