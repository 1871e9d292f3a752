"""One chat request through the gateway's process, in front of a worker that holds no model."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http import HTTPStatus
from http.client import HTTPResponse
from pathlib import Path
from socket import create_connection, socket

from qserve.gateway.app import build_gateway
from qserve.gateway.http.server import build_server
from qserve.gateway.settings import GatewaySettings
from qserve.worker.base import UnixAddress, WorkerFacts, WorkerState, WorkerStatus
from scripts.walking.traced import Trace, traced

_KEY = "sk-walk"
_FAKE_WORKER = Path(__file__).parents[2] / "bench" / "fake_worker.py"


_TRIES = 5
_AFTERWARDS_S = 0.05  # what is recorded of a request when it is answered


async def walk_of_chat(package: Path, streamed: bool) -> Trace:
    """The shortest of some requests on one connection after a first: without imports, caches and timers."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "worker.sock"
        worker = subprocess.Popen([sys.executable, _FAKE_WORKER, "--socket", path, "--key", _KEY])
        try:
            while not path.exists():
                if worker.poll() is not None:
                    sys.exit("the fake worker did not start")
                await asyncio.sleep(0.01)
            async with _gateway(path) as port:
                with create_connection(("127.0.0.1", port)) as client:
                    await asyncio.to_thread(_ask, client, streamed)
                    tries = [await _traced(package, client, streamed) for _ in range(_TRIES)]
            return min(tries, key=lambda trace: trace.calls)
        finally:
            worker.terminate()
            worker.wait()


@asynccontextmanager
async def _gateway(path: Path) -> AsyncIterator[int]:
    """The port of a gateway on this event loop."""
    facts = WorkerFacts(
        name="chat", models=("fake",), address=UnixAddress(path), key=_KEY, max_num_seqs=256, max_model_len=4096
    )
    gateway = build_gateway(GatewaySettings(keys=(_KEY,)), [WorkerStatus(facts, WorkerState.READY, "")])
    server = build_server(gateway, "127.0.0.1", 0, drain_timeout_s=1)
    serving = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.01)
    try:
        yield server.servers[0].sockets[0].getsockname()[1]
    finally:
        server.should_exit = True
        await serving


async def _traced(package: Path, client: socket, streamed: bool) -> Trace:
    trace = Trace(package)
    with traced(trace):
        await asyncio.to_thread(_ask, client, streamed)
        await asyncio.sleep(_AFTERWARDS_S)
    return trace


def _ask(client: socket, streamed: bool) -> None:
    """One request of a few tokens in one packet, to the end of its answer; in a thread of its own, not traced."""
    request = {"model": "fake", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4, "stream": streamed}
    body = json.dumps(request)
    head = (
        "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        f"authorization: Bearer {_KEY}\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    client.sendall(f"{head}{body}".encode())
    answer = HTTPResponse(client)
    answer.begin()
    if answer.status != HTTPStatus.OK:
        sys.exit(f"the gateway answered {answer.status}: {answer.read().decode()}")
    answer.read()
