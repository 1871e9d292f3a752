"""Three replicas behind one port, fake workers of known speed: who is asked, and what happens when one goes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass

import aiohttp
import pytest
import uvloop

from qserve.gateway.app import build_gateway
from qserve.gateway.http.server import build_server
from qserve.gateway.settings import GatewaySettings
from qserve.worker.base import UnixAddress, WorkerFacts, WorkerState, WorkerStatus
from tests.tiny.gateway.conftest import KEY, WORKER_KEY, FakeWorkerProcess

CHAT = "/v1/chat/completions"
NAMES = ("chat-0", "chat-1", "chat-2")
ADMIN = "sk-admin-77"


@dataclass
class Replicas:
    """The gateway with its replicas; `workers` and `statuses` by name."""

    url: str
    http: aiohttp.ClientSession
    workers: dict[str, FakeWorkerProcess]
    statuses: dict[str, WorkerStatus]
    restarts: list[str]

    async def gauge(self, name: str) -> dict[str, float]:
        """A metric's samples by worker."""
        async with self.http.get(f"{self.url}/metrics") as response:
            lines = (await response.text()).splitlines()
        found = [line for line in lines if line.startswith(f"qserve_gateway_{name}{{")]
        return {line.split('worker="')[1].split('"')[0]: float(line.rsplit(" ", 1)[1]) for line in found}

    async def until_running(self, total: int) -> dict[str, float]:
        """Waits until so many requests run; the bound keeps a broken promise from hanging the test."""
        async with asyncio.timeout(60):
            while sum((running := await self.gauge("requests_running")).values()) != total:
                await asyncio.sleep(0.02)
        return running

    async def until_received(self, name: str, total: int) -> None:
        """Waits until so many requests have come to this worker: one that was on its way counts for no death."""
        connector = aiohttp.UnixConnector(str(self.workers[name].socket))
        headers = {"authorization": f"Bearer {WORKER_KEY}"}
        async with aiohttp.ClientSession(connector=connector, headers=headers) as direct, asyncio.timeout(60):
            while True:
                async with direct.get("http://worker/debug") as response:
                    if (await response.json())["running"] == total:
                        return
                await asyncio.sleep(0.02)

    def kill(self, *names: str) -> None:
        """kill -9, and what the supervisor says of it: first, so that none of them gets what another leaves."""
        for name in names:
            self.statuses[name].detail = "the worker was killed by SIGKILL"
            self.statuses[name].state = WorkerState.RESTARTING
        for name in names:
            self.workers[name].kill()

    def bring_back(self, name: str) -> None:
        """What the supervisor does then."""
        self.workers[name].start()
        self.statuses[name].num_restarts += 1
        self.statuses[name].state = WorkerState.READY


@pytest.fixture(scope="module")
def _workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, FakeWorkerProcess]]:
    folder = tmp_path_factory.mktemp("replicas")
    workers = {name: FakeWorkerProcess(folder / f"{name}.sock") for name in NAMES}
    yield workers
    for worker in workers.values():
        worker.kill()


Start = Callable[..., AbstractAsyncContextManager[Replicas]]


@pytest.fixture
def replicas(_workers: dict[str, FakeWorkerProcess]) -> Start:
    """`async with replicas(max_num_seqs=…, …) as service`."""

    @contextlib.asynccontextmanager
    async def start(max_num_seqs: int = 16, **settings: object) -> AsyncIterator[Replicas]:
        for worker in _workers.values():
            if worker.process is None:
                worker.start()
        statuses = {
            name: WorkerStatus(
                WorkerFacts(name, ("fake",), UnixAddress(worker.socket), WORKER_KEY, max_num_seqs, 4096, role="chat"),
                state=WorkerState.READY,
            )
            for name, worker in _workers.items()
        }
        restarts: list[str] = []

        def restart() -> tuple[str, ...]:
            restarts.append("asked")
            return NAMES

        gateway = GatewaySettings(**{"keys": (KEY,), **settings})  # type: ignore[arg-type]
        server = build_server(
            build_gateway(gateway, list(statuses.values()), restart=restart), "127.0.0.1", 0, drain_timeout_s=1
        )
        thread = threading.Thread(target=lambda: uvloop.run(server.serve()))
        thread.start()
        while not server.started:
            assert thread.is_alive(), "the gateway did not start"
            await asyncio.sleep(0.005)
        url = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
        try:
            async with aiohttp.ClientSession(headers={"authorization": f"Bearer {KEY}"}) as http:
                yield Replicas(url, http, _workers, statuses, restarts)
        finally:
            server.should_exit = True
            await asyncio.to_thread(thread.join, 30)

    return start


def question(text: str, stream: bool = True, **knobs: object) -> dict[str, object]:
    metadata = {name: str(value) for name, value in knobs.items()}
    messages = [{"role": "user", "content": text}]
    return {"model": "fake", "stream": stream, "messages": messages, "metadata": metadata}


async def answer(service: Replicas, body: dict[str, object]) -> tuple[int, str]:
    async with asyncio.timeout(120), service.http.post(service.url + CHAT, json=body) as response:
        return response.status, await response.text()


async def test_load_goes_to_all_of_them(replicas: Start) -> None:
    async with replicas() as service:
        asking = [asyncio.create_task(answer(service, question(f"{at}", fault="hang"))) for at in range(12)]
        assert await service.until_running(12) == dict.fromkeys(NAMES, 4)
        tokens = await service.gauge("outstanding_tokens")
        assert min(tokens.values()) == max(tokens.values()) > 0
        for task in asking:
            task.cancel()
        await service.until_running(0)
        assert set((await service.gauge("outstanding_tokens")).values()) == {0}


async def test_a_conversation_stays_where_its_prefix_is(replicas: Start) -> None:
    async with replicas() as service:
        for person in range(3):
            text = f"{person} " * 300
            for turn in range(4):
                assert (await answer(service, question(text + "more " * 40 * turn)))[0] == 200
        blocks = await service.gauge("prefix_blocks")
        assert len([count for count in blocks.values() if count]) == 3, blocks
        # 300 words, then 40 more a turn, at one replica: not a copy of them at each.
        assert max(blocks.values()) < 12


async def test_what_had_not_begun_is_asked_again_and_what_had_ends_with_an_error(replicas: Start) -> None:
    async with replicas() as service:
        begun = [
            await service.http.post(service.url + CHAT, json=question(f"b{at}", chunks=9999, itl_ms=5))
            for at in range(6)
        ]
        for response in begun:
            await response.content.readuntil(b"\n\n")
        reading = [asyncio.create_task(response.read()) for response in begun]
        waiting = [asyncio.create_task(answer(service, question(f"w{at}", ttft_ms=3000, chunks=3))) for at in range(6)]
        await service.until_running(12)
        service.kill("chat-1")
        for status, text in await asyncio.gather(*waiting):
            assert status == 200 and text.endswith("data: [DONE]\n\n")
        async with asyncio.timeout(60):
            while sum(task.done() for task in reading) < 2:
                await asyncio.sleep(0.02)
        ended = [task.result() for task in reading if task.done()]
        assert len(ended) == 2, "those of the replica that died, and nobody else's"
        for rest in ended:
            assert json.loads(rest.split(b"data: ")[-1])["error"]["code"] == "worker_died"
        for task in reading:
            task.cancel()
        retries = await service.gauge("retries_total")
        assert retries == {"chat-0": 0, "chat-1": 2, "chat-2": 0}
        async with service.http.get(f"{service.url}/ready") as ready:
            assert ready.status == 200, "two replicas serve"


async def test_with_all_of_them_restarting_a_request_waits_for_the_first(replicas: Start) -> None:
    async with replicas() as service:
        for name in NAMES:
            service.kill(name)
        asking = asyncio.create_task(answer(service, question("anybody?", chunks=2)))
        await asyncio.sleep(0.3)
        assert not asking.done()
        service.workers["chat-2"].start()
        service.statuses["chat-2"].state = WorkerState.READY
        assert (await asking)[0] == 200


async def test_a_request_that_ends_two_workers_is_refused(replicas: Start) -> None:
    """And nobody else's: the third replica goes on."""
    async with replicas() as service:
        poison = question("poison", fault="hang")
        asking = asyncio.create_task(answer(service, poison))
        killed: set[str] = set()
        async with asyncio.timeout(60):
            while len(killed) < 2:
                running = await service.until_running(1)
                for name, count in running.items():
                    if count and name not in killed:  # and not what is told of one that is dead already
                        service.kill(name)
                        killed.add(name)
                        break
        status, text = await asking
        assert status == 422 and json.loads(text)["error"]["code"] == "request_ended_workers"
        assert (await answer(service, poison))[0] == 422
        assert (await answer(service, question("fine")))[0] == 200


async def test_of_two_suspects_each_is_asked_once_more_without_the_other(replicas: Start) -> None:
    """Both were in flight in the same two deaths: only a third tells which of them ends workers."""
    async with replicas() as service:
        asking = [asyncio.create_task(answer(service, question(f"poison {at}", fault="hang"))) for at in range(2)]
        one, other = [name for name, count in (await service.until_running(2)).items() if count]
        for name in (one, other):
            await service.until_received(name, 1)
        service.kill(one, other)
        (left,) = (name for name in NAMES if service.statuses[name].state is WorkerState.READY)
        await service.until_received(left, 2)
        service.kill(left)
        service.bring_back(one)
        await service.until_received(one, 1)
        service.kill(one)
        service.bring_back(other)
        await service.until_received(other, 1)
        done, waiting = await asyncio.wait(asking, timeout=60, return_when=asyncio.FIRST_COMPLETED)
        assert len(done) == len(waiting) == 1, "the other is asked now"
        status, text = done.pop().result()
        assert status == 422 and "died 3 times" in json.loads(text)["error"]["message"]
        for task in asking:
            task.cancel()


async def test_a_draining_replica_hands_its_queue_over(replicas: Start) -> None:
    async with replicas(max_num_seqs=1) as service:
        first = [asyncio.create_task(answer(service, question(f"{at}", ttft_ms=700, chunks=2))) for at in range(3)]
        await service.until_running(3)
        queued = [asyncio.create_task(answer(service, question(f"q{at}", chunks=2))) for at in range(6)]
        async with asyncio.timeout(60):
            while sum((await service.gauge("requests_waiting")).values()) != 6:
                await asyncio.sleep(0.02)
        service.statuses["chat-0"].detail = "it is about to be restarted"
        service.statuses["chat-0"].state = WorkerState.DRAINING
        assert {status for status, _ in await asyncio.gather(*first, *queued)} == {200}
        assert service.statuses["chat-0"].load.num_requests == 0


async def test_who_waits_at_a_replica_that_dies_is_answered_elsewhere(replicas: Start) -> None:
    """And by nobody's cancellation: what ends the wait ends nothing that comes after it."""
    async with replicas(max_num_seqs=1) as service:
        held = [asyncio.create_task(answer(service, question(f"h{at}", ttft_ms=700, chunks=2))) for at in range(3)]
        await service.until_running(3)
        queued = [asyncio.create_task(answer(service, question(f"q{at}", chunks=2))) for at in range(9)]
        async with asyncio.timeout(60):
            while sum((await service.gauge("requests_waiting")).values()) != 9:
                await asyncio.sleep(0.02)
        service.kill("chat-0")
        assert {status for status, _ in await asyncio.gather(*held, *queued)} == {200}


async def test_who_can_not_be_reached_was_not_asked(replicas: Start) -> None:
    """Each of the three goes before the supervisor says so, and comes back: a request waits for the first."""
    async with replicas() as service:
        for name in NAMES:
            service.workers[name].kill()
        asking = [asyncio.create_task(answer(service, question(f"{at}", chunks=2))) for at in range(4)]
        await asyncio.sleep(0.3)
        assert not any(task.done() for task in asking)
        for status in service.statuses.values():
            status.state = WorkerState.RESTARTING
            status.num_restarts += 1
        service.workers["chat-0"].start()
        service.statuses["chat-0"].state = WorkerState.READY
        assert {status for status, _ in await asyncio.gather(*asking)} == {200}


async def test_who_waits_goes_where_a_place_is_free(replicas: Start) -> None:
    """Two wait behind a long answer, and the others are done: they don't wait for it."""
    async with replicas(max_num_seqs=1) as service:
        held = asyncio.create_task(answer(service, question("long", fault="hang")))
        await service.until_running(1)
        others = [asyncio.create_task(answer(service, question(f"{at}", ttft_ms=100, chunks=1))) for at in range(9)]
        assert {status for status, _ in await asyncio.gather(*others)} == {200}
        held.cancel()


async def test_the_queue_is_bounded_over_all_of_them(replicas: Start) -> None:
    async with replicas(max_num_seqs=1, max_queue=4) as service:
        asking = [asyncio.create_task(answer(service, question(f"{at}", fault="hang"))) for at in range(7)]
        await service.until_running(3)
        status, text = await answer(service, question("one more"))
        assert status == 429 and "4 requests are waiting already" in text
        for task in asking:
            task.cancel()


async def test_a_restart_takes_an_admin_key(replicas: Start) -> None:
    path = "/v1/qserve/restart"
    async with replicas() as service, service.http.post(service.url + path) as response:
        assert response.status == 403
        assert "start it with --admin-key-file FILE, or send" in (await response.json())["error"]["message"]
    async with replicas(admin_keys=(ADMIN,)) as service:
        async with service.http.post(service.url + path) as response:
            assert response.status == 403 and (await response.json())["error"]["code"] == "not_admin"
        assert not service.restarts
        headers = {"authorization": f"Bearer {ADMIN}"}
        async with service.http.post(service.url + path, headers=headers) as response:
            assert response.status == 202
            assert await response.json() == {"status": "restarting", "workers": list(NAMES)}
