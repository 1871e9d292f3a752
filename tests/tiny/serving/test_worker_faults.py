"""What clients see when the worker dies, when they vanish, and when there are too many of them. One service for all."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.tiny.serving.served import Service, until

MAX_NUM_SEQS, MAX_QUEUE = 16, 8
# Long enough that nothing ends by itself while a test looks.
ENDLESS = {"model": "demo", "prompt": "one two three", "max_tokens": 1900, "ignore_eos": True, "stream": True}


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    arguments = ("--model", "demo", "--max-num-seqs", str(MAX_NUM_SEQS), "--max-queue", str(MAX_QUEUE))
    one = Service(arguments, tmp_path_factory.mktemp("faults"))
    yield one.until_ready()
    assert 'qserve_gateway_errors_total{code="worker_died"}' not in one.get("/metrics").text
    assert one.end_as_told() == 0


async def stream(client: httpx.AsyncClient, first: asyncio.Event, **fields: Any) -> tuple[str, float]:
    """Reads a stream to its end; the last event (or the status), and when it came."""
    last = ""
    try:
        async with client.stream("POST", "/v1/completions", json={**ENDLESS, **fields}) as response:
            if response.status_code != 200:
                first.set()
                body = await response.aread()
                return f"{response.status_code} {body.decode()}", time.monotonic()
            async for line in response.aiter_lines():
                if line:
                    last = line
                    first.set()
    except httpx.HTTPError as error:
        first.set()
        return repr(error), time.monotonic()
    return last, time.monotonic()


def http(service: Service) -> httpx.AsyncClient:
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
    return httpx.AsyncClient(base_url=service.url, timeout=60, limits=limits)


async def test_a_full_queue_is_a_429_that_says_when(service: Service) -> None:
    async with http(service) as client:
        begun = [asyncio.Event() for _ in range(MAX_NUM_SEQS)]
        running = [asyncio.create_task(stream(client, event)) for event in begun]
        await asyncio.gather(*(event.wait() for event in begun))
        waiting = [asyncio.create_task(stream(client, asyncio.Event())) for _ in range(MAX_QUEUE)]
        while await asyncio.to_thread(service.gauge, "qserve_gateway_requests_waiting") < MAX_QUEUE:
            await asyncio.sleep(0.02)
        refused = await client.post("/v1/completions", json=ENDLESS)
        assert refused.status_code == 429
        assert refused.json()["error"]["code"] == "queue_full"
        assert int(refused.headers["retry-after"]) >= 1
        assert await asyncio.to_thread(service.num_running) == MAX_NUM_SEQS
        for task in running + waiting:
            task.cancel()
        await asyncio.gather(*running, *waiting, return_exceptions=True)
    until(lambda: service.num_running() == 0, 10, "sequences of clients that left still run")


async def test_200_clients_that_vanish_leave_nothing_running(service: Service) -> None:
    async def vanish(client: httpx.AsyncClient, num_pieces: int) -> None:
        """Waits for a place, reads that many pieces, and is gone."""
        while True:
            async with client.stream("POST", "/v1/completions", json=ENDLESS) as response:
                if response.status_code == 200:
                    async for line in response.aiter_lines():
                        num_pieces -= bool(line)
                        if not num_pieces:
                            return
            assert response.status_code == 429
            await asyncio.sleep(0.05)

    before = service.gauge("qserve_gateway_disconnects_total")
    async with http(service) as client:
        await asyncio.gather(*(vanish(client, 1 + index % 5) for index in range(200)))
    took_s = until(
        lambda: service.num_running() == 0 and service.gauge("qserve_gateway_requests_running") == 0,
        10,
        lambda: f"{service.num_running()} sequences of vanished clients still run",
    )
    print(f"idle {took_s * 1000:.0f} ms after the last client left")
    assert service.gauge("qserve_gateway_disconnects_total") - before == 200
    assert service.gauge("qserve_worker_kv_cache_usage_ratio") < 0.5
    assert service.post("/v1/completions", prompt="a", max_tokens=2).status_code == 200


async def until_restarting(client: httpx.AsyncClient) -> None:
    async with asyncio.timeout(30):
        while (await client.get("/ready")).json()["workers"][0]["state"] != "restarting":
            await asyncio.sleep(0.02)


async def test_kill_9_of_the_worker_under_16_streams(service: Service) -> None:
    worker = service.worker()
    assert worker is not None
    async with http(service) as client:
        begun = [asyncio.Event() for _ in range(16)]
        tasks = [asyncio.create_task(stream(client, event, max_tokens=300)) for event in begun]
        await asyncio.gather(*(event.wait() for event in begun))
        worker.kill()
        await until_restarting(client)
        ready = await client.get("/ready")
        assert ready.status_code == 503
        assert ready.json()["workers"][0]["state"] == "restarting"
        refused = await client.post("/v1/completions", json=ENDLESS)
        assert refused.status_code == 503
        assert refused.json()["error"]["code"] == "worker_not_ready"
        assert "SIGKILL" in refused.json()["error"]["message"]
        assert (await client.get("/health")).status_code == 200
        for _ in range(3):  # more deaths than a request may be in whose worker ended by itself
            until(service.is_ready, 120, "the worker did not come back")
            next_one = service.worker()
            assert next_one is not None
            next_one.kill()
            await until_restarting(client)
        # Its next life continues all of them.
        assert {last for last, _ in await asyncio.wait_for(asyncio.gather(*tasks), 120)} == {"data: [DONE]"}
    until(service.is_ready, 120, "the worker did not come back")
    answer = service.post("/v1/completions", prompt="a", max_tokens=2)
    assert answer.status_code == 200
    assert answer.json()["choices"][0]["text"]
    again = service.worker()
    assert again is not None
    assert again.pid != worker.pid


async def test_a_worker_that_is_asked_by_somebody_else_refuses(service: Service) -> None:
    """Its socket lies in a folder of the user's own, and it wants the internal key."""
    sockets = list(service.temporary.glob("qserve-*/chat.sock"))
    assert len(sockets) == 1
    assert sockets[0].parent.stat().st_mode & 0o077 == 0
    async with httpx.AsyncClient(transport=httpx.AsyncHTTPTransport(uds=str(sockets[0]))) as client:
        statuses = Counter([(await client.get(f"http://worker{path}")).status_code for path in ("/health", "/metrics")])
    assert statuses == {401: 2}
