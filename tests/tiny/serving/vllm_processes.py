"""The processes of a real vLLM worker under a real `qserve up`, and what its clients hear when one of them dies."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import re
import socket
import time
from pathlib import Path
from typing import Any

import httpx
import psutil

from tests.processes import words
from tests.tiny.serving.served import Service, until

RESTART_LIMIT_S = 240
# Compiling is what a first start spends minutes with, and none of these tests is about what was compiled.
NOT_COMPILED = {"TORCH_COMPILE_DISABLE": "1"}


def family(service: Service) -> list[psutil.Process]:
    return psutil.Process(service.process.pid).children(recursive=True)


def the(service: Service, kind: str) -> psutil.Process:
    """One process of the worker: `api`, `engine` (VLLM::EngineCore) or `worker` (VLLM::Worker, where it is apart)."""
    api = "vllm.entrypoints.launchers.api_server.entry"
    marks = {"api": api, "engine": "VLLM::EngineCor", "worker": "VLLM::Worker"}
    for process in family(service):
        words = command(process)
        if marks[kind] in words and "guard.py" not in words:
            return process
    raise AssertionError(f"no {kind} among {[command(process) for process in family(service)]}; {service.output}")


def command(process: psutil.Process) -> str:
    """Empty for one that has ended since it was listed."""
    return " ".join(words(process)).strip()


def shared_memory(processes: list[psutil.Process]) -> list[Path]:
    """The segments that these processes have mapped."""
    segments = set()
    for process in processes:
        with contextlib.suppress(OSError):
            maps = Path(f"/proc/{process.pid}/maps").read_text()
            segments.update(re.findall(r"/dev/shm/psm_\w+$", maps, re.MULTILINE))
    return [Path(segment) for segment in segments]


def ask(place: Path, key: str, path: str, body: dict[str, Any] | None = None) -> tuple[int, bytes]:
    """Status and body of a worker's answer, asked on its socket behind the gateway's back."""
    connection = http.client.HTTPConnection("worker", timeout=60)
    connection.sock = socket.socket(socket.AF_UNIX)
    connection.sock.settimeout(60)
    try:
        connection.sock.connect(str(place))
        headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
        connection.request("GET" if body is None else "POST", path, None if body is None else json.dumps(body), headers)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


async def last_word(client: httpx.AsyncClient, num_tokens: int, first: asyncio.Event) -> tuple[str, float]:
    """The last event of a stream (or what broke it), and when it came."""
    last = ""
    body = {"model": "demo", "prompt": "one two three", "max_tokens": num_tokens, "ignore_eos": True, "stream": True}
    try:
        async with client.stream("POST", "/v1/completions", json=body) as response:
            async for line in response.aiter_lines():
                if line and line != "data: [DONE]":  # vLLM sends one after an error, too
                    last = line
                    first.set()
    except httpx.HTTPError as error:
        return repr(error), time.monotonic()
    return last, time.monotonic()


async def kill_under_load(service: Service, kind: str, num_streams: int, num_tokens: int, key: str = "") -> None:
    """Kills a process of the worker while `num_streams` run: each client hears of it, and nothing is left.

    Does not wait until the worker is back.
    """
    headers = {"authorization": f"Bearer {key}"} if key else {}

    def is_ready() -> bool:
        return httpx.get(f"{service.url}/ready", headers=headers, timeout=30).status_code == 200

    until(is_ready, RESTART_LIMIT_S, "it is not ready")
    before = family(service)
    async with httpx.AsyncClient(base_url=service.url, headers=headers, timeout=60) as client:
        begun = [asyncio.Event() for _ in range(num_streams)]
        streams = [asyncio.create_task(last_word(client, num_tokens, event)) for event in begun]
        await asyncio.wait_for(asyncio.gather(*(event.wait() for event in begun)), 60)
        the(service, kind).kill()
        killed = time.monotonic()
        ends = await asyncio.wait_for(asyncio.gather(*streams), 60)
        until(lambda: not is_ready(), 60, "/ready stays green")
    last = [(json.loads(word.removeprefix("data: ")), when) for word, when in ends]
    heard = [when - killed for word, when in last if "error" in word]
    # A stream may have come to its end before.
    assert heard and all("error" in word or word["choices"][0]["finish_reason"] == "length" for word, _ in last), last
    print(f"{kind}: the slowest of {len(heard)} clients heard of it after {max(heard) * 1000:.0f} ms")
    assert max(heard) < 30, "it waited for a limit"
    _, alive = psutil.wait_procs(before, timeout=60)
    assert not alive, f"{kind} was killed, and these are left: {alive}"
