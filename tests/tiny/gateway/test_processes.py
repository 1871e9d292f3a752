"""Two gateway processes behind one port, real ones: what they count, bound and keep is one; one of them is killed."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import psutil
import pytest
import uvloop

from qserve.gateway.processes.coordinator import Service
from qserve.gateway.run_history import RunHistory
from qserve.gateway.settings import GatewaySettings
from qserve.supervisor import ports
from qserve.supervisor.gateways import Processes, make_gateway
from qserve.worker.base import UnixAddress, WorkerFacts, WorkerState, WorkerStatus
from tests.processes import words
from tests.tiny.gateway.conftest import KEY, WORKER_KEY, FakeWorkerProcess, chat

CHAT = "/v1/chat/completions"
PLACES = 4


@dataclass
class Running:
    """The service, and what it was asked to do."""

    socket: Path
    url: str = ""
    rows: list[Any] = field(default_factory=list)
    restarts: list[str] = field(default_factory=list)
    happened: list[str] = field(default_factory=list)

    def serve(self) -> None:
        uvloop.run(self._serve())

    async def _serve(self) -> None:
        self.loop, self.stopped = asyncio.get_running_loop(), asyncio.Event()
        worker = WorkerStatus(
            WorkerFacts("chat", ("fake",), UnixAddress(self.socket), WORKER_KEY, PLACES, 4096), WorkerState.READY, ""
        )
        service = Service(self._restart, self._host, self.rows.append, RunHistory())
        listener = ports.bind("127.0.0.1", 0)
        gateway = make_gateway(
            Processes(2),
            GatewaySettings(keys=(KEY,), admin_keys=("sk-admin",), max_queue=3),
            [worker],
            service,
            None,
            listener,
            lambda name, event, **details: self.happened.append(event),
        )
        gateway.begin()
        try:
            await gateway.ready()
            self.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
            await self.stopped.wait()
        finally:
            await gateway.stop()

    def _restart(self) -> tuple[str, ...]:
        self.restarts.append("asked")
        return ("chat",)

    async def _host(self) -> list[dict[str, Any]]:
        return [{"process": "gateway"}]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    worker = FakeWorkerProcess(tmp_path_factory.mktemp("processes") / "w.sock")
    worker.start()
    one = Running(worker.socket)
    thread = threading.Thread(target=one.serve)
    thread.start()
    while not one.url:
        assert thread.is_alive(), "the gateway did not start"
        thread.join(0.05)
    yield one
    one.loop.call_soon_threadsafe(one.stopped.set)
    thread.join(60)
    worker.kill()
    assert not thread.is_alive() and not processes()


def processes() -> list[psutil.Process]:
    """The gateway's own."""
    children = psutil.Process().children()
    return [one for one in children if "qserve.supervisor.gateway_process" in words(one)]


@contextlib.contextmanager
def alone(process: psutil.Process) -> Iterator[None]:
    """The others are stopped, so that it accepts what comes: who is faster is nobody's to foretell."""
    others = [one for one in processes() if one.pid != process.pid]
    for other in others:
        other.suspend()
    try:
        yield
    finally:
        for other in others:
            other.resume()


@contextlib.asynccontextmanager
async def client() -> AsyncIterator[aiohttp.ClientSession]:
    """A connection for each request, so that any process may take it."""
    connector = aiohttp.TCPConnector(force_close=True, limit=0)
    headers = {"authorization": f"Bearer {KEY}"}
    async with aiohttp.ClientSession(connector=connector, headers=headers) as http:
        yield http


async def ask(http: aiohttp.ClientSession, one: Running, **knobs: Any) -> tuple[int, str]:
    """Status, and the process that answered (by the first part of the ids that it gives out)."""
    async with asyncio.timeout(60), http.post(one.url + CHAT, json=chat(**knobs)) as response:
        await response.read()
        return response.status, response.headers["x-request-id"].rpartition("-")[0]


async def metric(http: aiohttp.ClientSession, one: Running, name: str) -> float:
    """The sum of a metric's samples."""
    async with http.get(f"{one.url}/metrics") as response:
        lines = (await response.text()).splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith((f"{name}{{", f"{name} ")))


async def until(http: aiohttp.ClientSession, one: Running, name: str, value: float) -> None:
    async with asyncio.timeout(60):
        while await metric(http, one, name) != value:
            await asyncio.sleep(0.02)


ANSWERED = 'qserve_gateway_requests_total{model="fake",route="/v1/chat/completions",status="200"}'


async def test_what_is_counted_and_kept_is_the_sum_whoever_is_asked(running: Running) -> None:
    async with client() as http:
        before, kept = await metric(http, running, ANSWERED), len(running.rows)
        answers = []
        for process in processes():
            with alone(process):
                answers += await asyncio.gather(*(ask(http, running, chunks=2) for _ in range(4)))
        assert {status for status, _ in answers} == {200} and len({process for _, process in answers}) == 2
        answered = len(answers)
        assert {await metric(http, running, ANSWERED) for _ in range(6)} == {before + answered}
        assert len(running.rows) - kept == answered
        label, *rest = running.rows[-1]
        assert label[:5] == ["POST", CHAT, "fake", "chat", 200] and rest[4] is None and rest[6] == 2
        assert await metric(http, running, "qserve_gateway_processes") == 2


async def test_places_and_the_queue_are_bounded_over_both(running: Running) -> None:
    async with client() as http:
        held = [asyncio.create_task(ask(http, running, fault="hang")) for _ in range(PLACES)]
        await until(http, running, 'qserve_gateway_requests_running{worker="chat"}', PLACES)
        queued = [asyncio.create_task(ask(http, running, fault="hang")) for _ in range(3)]
        await until(http, running, 'qserve_gateway_requests_waiting{worker="chat"}', 3)
        assert {status for status, _ in await asyncio.gather(*(ask(http, running) for _ in range(8)))} == {429}
        assert await metric(http, running, 'qserve_gateway_requests_running{worker="chat"}') == PLACES
        for task in (*held, *queued):
            task.cancel()
        await until(http, running, 'qserve_gateway_requests_running{worker="chat"}', 0)
        await until(http, running, 'qserve_gateway_requests_waiting{worker="chat"}', 0)


async def test_any_of_them_asks_the_service(running: Running) -> None:
    admin = {"authorization": "Bearer sk-admin"}
    async with client() as http:
        for count in range(1, 4):
            async with http.post(f"{running.url}/v1/qserve/restart", headers=admin) as response:
                assert response.status == 202 and (await response.json())["workers"] == ["chat"]
            assert len(running.restarts) == count
        async with http.post(f"{running.url}/v1/qserve/restart") as response:
            assert response.status == 403
        async with http.get(f"{running.url}/v1/qserve/memory") as response:
            assert (await response.json())["host"] == [{"process": "gateway"}]
        created = set()
        for _ in range(6):
            async with http.get(f"{running.url}/v1/models") as response:
                created.add((await response.json())["data"][0]["created"])
        assert len(created) == 1


async def test_one_that_is_killed_takes_its_own_connections_and_comes_back(running: Running) -> None:
    async with client() as http:
        before = await metric(http, running, ANSWERED)
        assert (await ask(http, running, chunks=1))[0] == 200
        assert await metric(http, running, ANSWERED) == before + 1
        victim, survivor = processes()
        streams = []
        for process in (victim, survivor):
            with alone(process):
                streams.append(await http.post(running.url + CHAT, json=chat(chunks=99999, itl_ms=5)))
        one, other = streams
        victim.kill()
        ends = [asyncio.create_task(response.read()) for response in (one, other)]
        with pytest.raises(aiohttp.ClientError):
            await asyncio.wait_for(ends[0], 60)
        await until(http, running, 'qserve_gateway_requests_running{worker="chat"}', 1)  # its places are others'
        assert (await ask(http, running, chunks=1))[0] == 200
        await until(http, running, "qserve_gateway_processes", 2)
        assert running.happened[-1:] == ["restart"] and len(processes()) == 2
        assert not ends[1].done(), "the stream of the other one goes on"
        assert await metric(http, running, ANSWERED) >= before + 1, "what a dead one counted is not forgotten"
        other.close()
        one.close()
        for task in ends:
            task.cancel()
        await asyncio.gather(*ends, return_exceptions=True)


async def test_one_that_is_stopped_goes_on_with_its_streams(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """By its supervisor, which hears nothing of it; what comes meanwhile is answered by the other."""
    monkeypatch.setattr("qserve.supervisor.gateways._LOOK_S", 0.7)
    stopped = processes()[0]
    num_happened = len(running.happened)
    async with client() as http:
        with alone(stopped):
            response = await http.post(running.url + CHAT, json=chat(chunks=2000, itl_ms=5))
            stream = asyncio.create_task(response.read())
        await asyncio.sleep(4)  # a look that began earlier is over
        stopped.suspend()
        assert (await ask(http, running, chunks=1))[0] == 200
        assert b"[DONE]" in (await asyncio.wait_for(stream, 60))[-100:]
    assert stopped.is_running() and stopped.status() != psutil.STATUS_STOPPED
    assert len(running.happened) == num_happened, "it was replaced"
