"""A gateway in a thread of the test's process."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Sequence
from typing import Any

import uvloop

from qserve.gateway.app import build_gateway
from qserve.gateway.http.server import build_server
from qserve.gateway.settings import GatewaySettings
from qserve.worker.base import WorkerStatus

__all__ = ["gateway_over"]


@contextlib.asynccontextmanager
async def gateway_over(workers: Sequence[WorkerStatus], **settings: Any) -> AsyncIterator[str]:
    """A gateway over these workers; gives its base URL."""
    server = build_server(build_gateway(GatewaySettings(**settings), workers), "127.0.0.1", 0, 1)
    thread = threading.Thread(target=lambda: uvloop.run(server.serve()))
    thread.start()
    while not server.started:
        await asyncio.sleep(0.005)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        await asyncio.to_thread(thread.join)
