"""A real uvicorn gateway on a uvloop of its own (in a thread here), before the process of a fake worker."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import aiohttp
import pytest
import uvloop

from qserve.gateway.app import build_gateway
from qserve.gateway.http.server import BoundedServer, build_server
from qserve.gateway.processes.coordinator import Coordinator, Service
from qserve.gateway.processes.coordinator_client import CoordinatorClient
from qserve.gateway.run_history import RunHistory
from qserve.gateway.settings import GatewaySettings
from qserve.gateway.telemetry.tracing import Traces
from qserve.supervisor import ports
from qserve.worker.base import UnixAddress, WorkerFacts, WorkerState, WorkerStatus

FAKE_WORKER = Path(__file__).parents[3] / "bench" / "fake_worker.py"
KEY = "sk-client-4f6c"
WORKER_KEY = "wk-internal-93ab"


@dataclass
class FakeWorkerProcess:
    """The process behind one unix socket."""

    socket: Path
    process: subprocess.Popen[bytes] | None = None

    def start(self, key: str = WORKER_KEY) -> None:
        self.socket.unlink(missing_ok=True)
        command = [sys.executable, str(FAKE_WORKER), "--socket", str(self.socket), "--key", key]
        self.process = subprocess.Popen(command)
        while not self.socket.exists():
            assert self.process.poll() is None, "the fake worker did not start"
            time.sleep(0.02)

    def kill(self) -> None:
        """kill -9."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None


class Served(Protocol):
    """A gateway that runs in a thread."""

    @property
    def port(self) -> int: ...
    def run(self) -> None: ...
    def stop(self) -> None: ...


@dataclass
class ServedByOne:
    """As `qserve up` alone."""

    server: BoundedServer

    @property
    def port(self) -> int:
        return self.server.servers[0].sockets[0].getsockname()[1] if self.server.started else 0

    def run(self) -> None:
        uvloop.run(self.server.serve())

    def stop(self) -> None:
        self.server.should_exit = True


@dataclass
class ServedByMany:
    """As `--gateway-processes`, but for the processes: a coordinator, and who joined it, on one event loop."""

    settings: GatewaySettings
    status: WorkerStatus
    traces: Traces | None
    count: int
    port: int = 0

    def run(self) -> None:
        uvloop.run(self._serve())

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._stopped.set)

    async def _serve(self) -> None:
        self._loop, self._stopped = asyncio.get_running_loop(), asyncio.Event()
        service = Service(lambda: None, _no_host, lambda row: None, RunHistory())
        coordinator = Coordinator(self.settings, [self.status], service, None, self.count)
        coordinating = asyncio.create_task(coordinator.run())
        listener = ports.bind("127.0.0.1", 0)
        members = [await self._join(coordinator, listener.dup()) for _ in range(self.count)]
        self.port = listener.getsockname()[1]
        await self._stopped.wait()
        await coordinator.stop()
        for joined, server, serving in members:
            server.should_exit = True
            await serving
            await joined.close()
        for member in list(coordinator.members):
            await member.gone.wait()
        coordinating.cancel()
        listener.close()

    async def _join(
        self, coordinator: Coordinator, listener: socket.socket
    ) -> tuple[CoordinatorClient, BoundedServer, Any]:
        ours, theirs = socket.socketpair()
        joined = CoordinatorClient(lost=lambda: None)
        beginning = asyncio.create_task(joined.begin(theirs))
        await coordinator.join("gateway", ours, {})
        await beginning
        server = build_server(joined.gateway(self.traces), "127.0.0.1", 0, drain_timeout_s=1)
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        while not server.started:
            await asyncio.sleep(0.005)
        joined.serves()
        return joined, server, serving


async def _no_host() -> list[dict[str, Any]]:
    return []


@dataclass
class Stack:
    """A gateway, its worker, and a client that holds the key."""

    url: str
    port: int
    http: aiohttp.ClientSession
    worker: FakeWorkerProcess
    status: WorkerStatus
    direct: aiohttp.ClientSession = field(repr=False)

    async def debug(self) -> dict[str, Any]:
        """What the worker knows of itself."""
        async with self.direct.get("http://worker/debug") as response:
            return await response.json()

    async def until(self, holds: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Waits until the worker's /debug satisfies `holds`; the bound keeps a broken promise from hanging the test."""
        async with asyncio.timeout(60):
            while not holds(seen := await self.debug()):
                await asyncio.sleep(0.01)
        return seen

    async def gauge(self, name: str) -> float:
        """A sample of the gateway's /metrics, by its full name with labels."""
        async with self.http.get(f"{self.url}/metrics") as response:
            for line in (await response.text()).splitlines():
                if line.startswith(name + " "):
                    return float(line.rsplit(" ", 1)[1])
        return 0.0


def chat(stream: bool = True, **knobs: Any) -> dict[str, Any]:
    """A chat request; `n`, `user` and `stream_options` are fields, everything else tells the fake worker what to do."""
    fields = {name: knobs.pop(name) for name in ("n", "user", "stream_options") if name in knobs}
    metadata = {name: str(value) for name, value in knobs.items()}
    messages = [{"role": "user", "content": "Count!"}]
    return {"model": "fake", "stream": stream, "messages": messages, "metadata": metadata, **fields}


def events(body: bytes) -> list[Any]:
    """The data of each server-sent event; `[DONE]` stays a string. Fails on half an event."""
    assert body.endswith(b"\n\n"), body[-80:]
    texts = [part.removeprefix("data: ") for part in body.decode().removesuffix("\n\n").split("\n\n")]
    return [text if text == "[DONE]" else json.loads(text) for text in texts]


@pytest.fixture(scope="session")
def _fake_worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeWorkerProcess]:
    worker = FakeWorkerProcess(tmp_path_factory.mktemp("worker") / "w.sock")
    yield worker
    worker.kill()


@pytest.fixture
def num_processes() -> int:
    """Gateway processes behind the port. Modules that ask for 2 as well hold them to the same promises."""
    return 1


@pytest.fixture
def running(_fake_worker: FakeWorkerProcess, num_processes: int) -> Callable[..., AbstractAsyncContextManager[Stack]]:
    """`async with running(max_num_seqs=…, max_queue=…, …) as stack`. The worker's process is shared between tests."""

    @contextlib.asynccontextmanager
    async def start(max_num_seqs: int = 256, traces: Traces | None = None, **settings: Any) -> AsyncIterator[Stack]:
        if _fake_worker.process is None or _fake_worker.process.poll() is not None:
            _fake_worker.start()
        status = WorkerStatus(
            WorkerFacts(
                name="chat",
                models=("fake", "org/Fake-8B"),
                address=UnixAddress(_fake_worker.socket),
                key=WORKER_KEY,
                max_num_seqs=max_num_seqs,
                max_model_len=4096,
            ),
            state=WorkerState.READY,
            detail="",
        )
        gateway = GatewaySettings(**{"keys": (KEY,), **settings})
        if num_processes > 1:
            served: Served = ServedByMany(gateway, status, traces, num_processes)
        else:
            served = ServedByOne(build_server(build_gateway(gateway, [status], traces), "127.0.0.1", 0, 1))
        thread = threading.Thread(target=served.run)
        thread.start()
        while not served.port:
            assert thread.is_alive(), "the gateway did not start"
            await asyncio.sleep(0.005)
        port = served.port
        try:
            async with (
                aiohttp.ClientSession(headers={"authorization": f"Bearer {KEY}"}) as http,
                aiohttp.ClientSession(
                    connector=aiohttp.UnixConnector(str(_fake_worker.socket), force_close=True),
                    headers={"authorization": f"Bearer {WORKER_KEY}"},
                ) as direct,
            ):
                yield Stack(f"http://127.0.0.1:{port}", port, http, _fake_worker, status, direct)
        finally:
            served.stop()
            await asyncio.to_thread(thread.join)

    return start


@pytest.fixture
def request_chat() -> Callable[..., dict[str, Any]]:
    return chat


@pytest.fixture
def parse_events() -> Callable[[bytes], list[Any]]:
    return events
