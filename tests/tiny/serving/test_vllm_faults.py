"""Each process of a vLLM worker is killed under load, one after the other: clients hear of it, and it comes back."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from tests.tiny.serving.served import Service, until

NUM_STREAMS = 8
ENDLESS = {"model": "demo", "prompt": "one two three", "max_tokens": 1900, "ignore_eos": True, "stream": True}
FLAGS = ("--engine", "vllm", "--max-model-len", "2048", "--kv-cache-memory-bytes", "64MiB", "--enforce-eager")
RESTART_LIMIT_S = 300


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    one = Service(("--model", "demo", *FLAGS), tmp_path_factory.mktemp("vllm"))
    yield one.until_ready()
    one.end()


def family(service: Service) -> list[psutil.Process]:
    return psutil.Process(service.process.pid).children(recursive=True)


def the(service: Service, kind: str) -> psutil.Process:
    """One process of the worker: `api`, `engine` (VLLM::EngineCore) or `worker` (VLLM::Worker)."""
    marks = {"api": "vllm.entrypoints.openai.api_server", "engine": "VLLM::EngineCor", "worker": "VLLM::Worker"}
    for process in family(service):
        words = command(process)
        if marks[kind] in words and "guard.py" not in words:
            return process
    raise AssertionError(f"no {kind} among {[command(process) for process in family(service)]}; {service.output}")


def command(process: psutil.Process) -> str:
    """Empty for one that has ended since it was listed."""
    try:
        return " ".join(process.cmdline()).strip()
    except psutil.Error:
        return ""


def shared_memory(processes: list[psutil.Process]) -> list[Path]:
    """The segments that these processes have mapped."""
    segments = set()
    for process in processes:
        with contextlib.suppress(OSError):
            maps = Path(f"/proc/{process.pid}/maps").read_text()
            segments.update(re.findall(r"/dev/shm/psm_\w+$", maps, re.MULTILINE))
    return [Path(segment) for segment in segments]


async def last_word(client: httpx.AsyncClient, first: asyncio.Event) -> tuple[str, float]:
    """The last event of a stream (or what broke it), and when it came."""
    last = ""
    try:
        async with client.stream("POST", "/v1/completions", json=ENDLESS) as response:
            async for line in response.aiter_lines():
                if line and line != "data: [DONE]":  # vLLM sends one after an error, too
                    last = line
                    first.set()
    except httpx.HTTPError as error:
        return repr(error), time.monotonic()
    return last, time.monotonic()


def is_zombie(process: psutil.Process) -> bool:
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.parametrize("kind", ["engine", "worker", "api"])
async def test_kill_9(service: Service, kind: str) -> None:
    until(service.is_ready, RESTART_LIMIT_S, "it is not ready")
    before = family(service)
    async with httpx.AsyncClient(base_url=service.url, timeout=60) as client:
        begun = [asyncio.Event() for _ in range(NUM_STREAMS)]
        streams = [asyncio.create_task(last_word(client, event)) for event in begun]
        await asyncio.gather(*(event.wait() for event in begun))
        the(service, kind).kill()
        killed = time.monotonic()
        ends = await asyncio.wait_for(asyncio.gather(*streams), 60)
        until(lambda: not service.is_ready(), 60, "/ready stays green")
    last = [(json.loads(word.removeprefix("data: ")), when) for word, when in ends]
    heard = [when - killed for word, when in last if "error" in word]
    # A stream may have come to its end before.
    assert heard and all("error" in word or word["choices"][0]["finish_reason"] == "length" for word, _ in last), last
    print(f"{kind}: the slowest of {len(heard)} clients heard of it after {max(heard) * 1000:.0f} ms")
    assert max(heard) < 5
    _, alive = psutil.wait_procs(before, timeout=60)
    assert not alive, f"{kind} was killed, and these are left: {alive}"
    until(service.is_ready, RESTART_LIMIT_S, "the worker did not come back")
    answer = service.post("/v1/completions", prompt="a", max_tokens=2)
    assert answer.status_code == 200
    assert not [process for process in family(service) if is_zombie(process)]


def test_kill_9_of_qserve_leaves_no_process_of_vllm(service: Service) -> None:
    """The last test of this file: the service does not come back."""
    until(service.is_ready, RESTART_LIMIT_S, "it is not ready")
    before = family(service)
    segments = shared_memory(before)
    assert segments
    assert {"VLLM::EngineCore", "VLLM::Worker"} <= {command(process) for process in before}
    service.process.kill()
    _, alive = psutil.wait_procs(before, timeout=60)
    assert not alive, f"qserve was killed, and these are left: {alive}"
    assert not [segment for segment in segments if segment.exists()], "shared memory was not given back"
