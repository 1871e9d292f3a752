"""A service whose memory runs out: requests are refused, streams go on, and its worker is ended by us and comes back.

In a memory cgroup of its own; where none can be made, what it reads of the kernel are files of the test. All of it is
the same with every engine, and echo starts in a second.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from qserve.units import MIB
from tests.tiny.serving.served import Service, until
from tests.tiny.serving.short_of_memory import LIMIT, Cgroup, Files, Memory, cgroups_can_be_made

# 512 MiB free refuse, 427 drain, 341 end, 614 recover.
ASKED = ("--model", "demo", "--engine", "echo", "--min-free-ram", "512MiB", "--no-ui")
ECHO = {"PYTHONPATH": str(Path(__file__).parents[2] / "echo_engine"), "ECHO_PAUSE_S": "0.05"}
LONG = {"model": "demo", "prompt": "one two three four " * 60, "max_tokens": 1900, "stream": True}
SHORT = {"prompt": "one two three", "max_tokens": 2}


@pytest.fixture(scope="module")
def memory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Memory]:
    kind = Cgroup if cgroups_can_be_made() else Files
    one = kind(tmp_path_factory.mktemp("memory"))
    yield one
    one.close()


@pytest.fixture(scope="module")
def service(memory: Memory, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    one = Service(ASKED, tmp_path_factory.mktemp("low"), ECHO, program=memory.program)
    try:
        yield one.until_ready()
    finally:
        one.end_as_told()


def level(service: Service) -> float:
    return service.gauge("qserve_gateway_machine_memory_level")


async def streamed(service: Service, begun: asyncio.Event) -> str:
    """The last line of a stream that takes seconds."""
    last = ""
    async with (
        httpx.AsyncClient(base_url=service.url, timeout=120) as client,
        client.stream("POST", "/v1/completions", json=LONG) as response,
    ):
        async for line in response.aiter_lines():
            last = line or last
            begun.set()
    return last


async def test_new_requests_are_refused_while_a_stream_goes_on(service: Service, memory: Memory) -> None:
    assert level(service) == 0
    begun = asyncio.Event()
    running = asyncio.create_task(streamed(service, begun))
    await begun.wait()
    await asyncio.to_thread(memory.leave_free, 470 * MIB)

    def is_refused() -> bool:
        return service.post("/v1/completions", **SHORT).status_code == 503

    await asyncio.to_thread(until, is_refused, 20, "a request was taken with 470 MiB free")
    refused = await asyncio.to_thread(service.post, "/v1/completions", **SHORT)
    assert not running.done(), "the stream must be longer for this test to say anything"
    error = refused.json()["error"]
    assert (refused.status_code, error["code"], refused.headers["retry-after"]) == (503, "memory_low", "10")
    assert (
        "takes no new requests now: the cgroup " in error["message"] and "until 614.4 MiB are free" in error["message"]
    )
    ready = await asyncio.to_thread(service.get, "/ready")
    assert (ready.status_code, ready.json()["workers"][0]["state"]) == (503, "ready")
    assert await asyncio.to_thread(level, service) == 1
    assert (await asyncio.to_thread(service.get, "/health")).status_code == 200
    assert await running == "data: [DONE]"
    await asyncio.to_thread(memory.leave_free, LIMIT)
    await asyncio.to_thread(until, service.is_ready, 20, "requests are not taken again")
    assert (await asyncio.to_thread(service.post, "/v1/completions", **SHORT)).status_code == 200


def test_the_worker_is_ended_by_us_and_comes_back(service: Service, memory: Memory) -> None:
    (before,) = [one for one in psutil.Process(service.process.pid).children() if "echo_engine.worker" in one.cmdline()]
    memory.leave_free(200 * MIB)
    until(lambda: not before.is_running(), 20, "the worker was not ended")
    refused = service.post("/v1/completions", **SHORT)
    assert refused.status_code == 503
    assert "it was ended to free memory" in refused.json()["error"]["message"]
    assert service.gauge("qserve_gateway_machine_memory_ended_total") == 1
    assert memory.num_killed_by_kernel() == 0
    memory.leave_free(LIMIT)
    until(service.is_ready, 120, "the worker did not come back")
    assert service.post("/v1/completions", **SHORT).status_code == 200
    assert service.gauge("qserve_gateway_worker_restarts_total") == 1
    (line,) = [line for line in service.lines if "it was ended to free memory" in line and "memory:" in line]
    print(line)
    assert "chat holds " in line and "(planned " in line
    run = service.get("/v1/qserve/runs").json()["data"][0]["id"]
    events = json.dumps(service.get(f"/v1/qserve/runs/{run}").json())
    assert '"memory_low"' in events and '"memory_end"' in events and '"memory_enough"' in events
