"""A gateway with files in a process of its own:  python batch_gateway.py SOCKET WORKER_KEY FOLDER PLACES KEY…

Prints its port. It ends when its standard input does.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from pathlib import Path

import uvloop

from qserve.gateway.app import build_gateway
from qserve.gateway.http.server import build_server
from qserve.gateway.settings import GatewaySettings
from qserve.worker.base import UnixAddress, WorkerFacts, WorkerState, WorkerStatus


async def _serve(socket: Path, worker_key: str, folder: Path, num_slots: int, keys: tuple[str, ...]) -> None:
    status = WorkerStatus(
        WorkerFacts(
            name="chat",
            models=("fake",),
            address=UnixAddress(socket),
            key=worker_key,
            max_num_seqs=num_slots,
            max_model_len=4096,
        ),
        state=WorkerState.READY,
        detail="",
    )
    app = build_gateway(GatewaySettings(keys=keys), [status], files=folder)
    server = build_server(app, "127.0.0.1", 0, drain_timeout_s=1)
    serving = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.01)
    print(server.servers[0].sockets[0].getsockname()[1], flush=True)
    await serving


def _end_with_standard_input() -> None:
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    threading.Thread(target=_end_with_standard_input, daemon=True).start()
    uvloop.run(_serve(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]), int(sys.argv[4]), tuple(sys.argv[5:])))
