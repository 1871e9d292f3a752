"""Two real replicas of the demo behind two gateway processes; one replica is killed under streams."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator

import httpx
import psutil
import pytest

from tests.tiny.serving.served import Service

NAMES = ("chat-0", "chat-1")
QUESTIONS = [f"What is {at}+{at + 1}?" for at in range(9)]


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    arguments = (
        "--model",
        "demo",
        "--dtype",
        "float32",
        "--replicas",
        "2",
        "--max-num-seqs",
        "8",
        "--no-ui",
        "--gateway-processes",
        "2",
    )
    one = Service(arguments, tmp_path_factory.mktemp("replicas"))
    try:
        yield one.until_ready()
    finally:
        one.end_as_told()


def body(question: str, **fields: object) -> dict[str, object]:
    messages = [{"role": "user", "content": question}]
    return {"model": "demo", "messages": messages, "temperature": 0, "max_tokens": 300, "ignore_eos": True, **fields}


async def text_of(client: httpx.AsyncClient, question: str, begun: asyncio.Semaphore | None = None) -> tuple[str, str]:
    """The words of a stream, and the code of the error that it ended with, if one did."""
    words, error = "", ""
    async with client.stream("POST", "/v1/chat/completions", json=body(question, stream=True)) as response:
        assert response.status_code == 200, await response.aread()
        async for line in response.aiter_lines():
            if line.startswith("data: {"):
                event = json.loads(line.removeprefix("data: "))
                error = event["error"]["code"] if "error" in event else error
                words += "".join(one["delta"].get("content") or "" for one in event.get("choices", ()))
                if begun is not None and words:
                    begun.release()
                    begun = None
    return words, error


def replica(service: Service, name: str) -> psutil.Process:
    """The worker's process by its spec file."""
    children = psutil.Process(service.process.pid).children()
    return next(one for one in children if any(word.endswith(f"/{name}.json") for word in one.cmdline()))


async def test_one_is_killed_under_streams_and_the_others_do_not_notice(service: Service) -> None:
    """What had begun there is continued elsewhere, to the last byte as undisturbed, and nothing fails."""
    async with httpx.AsyncClient(base_url=service.url, timeout=60) as client:
        undisturbed = dict(
            zip(QUESTIONS, await asyncio.gather(*(text_of(client, one) for one in QUESTIONS)), strict=True)
        )
        worker, begun = replica(service, "chat-1"), asyncio.Semaphore(0)
        streams = {one: asyncio.create_task(text_of(client, one, begun)) for one in QUESTIONS}
        for _ in QUESTIONS:
            await begun.acquire()
        worker.kill()
        later = [asyncio.create_task(text_of(client, one)) for one in QUESTIONS[:3]]
        ends = {one: await stream for one, stream in streams.items()}
        for question, (words, error) in ends.items():
            expected = undisturbed[question][0]
            assert (words, error) == (expected, "")
        metrics = (await client.get("/metrics")).text
        continued = re.search(r'^qserve_gateway_streams_continued_total\{model="demo"\} (\d+)', metrics, re.MULTILINE)
        assert continued is not None and 0 < int(continued[1]) < len(QUESTIONS)
        assert [(await one)[1] for one in later] == [""] * 3
        ready = await client.get("/ready")
        assert ready.status_code == 200
        assert [worker["name"] for worker in ready.json()["workers"]] == list(NAMES)


def test_every_replica_has_its_entry_and_its_line(service: Service) -> None:
    report = httpx.get(f"{service.url}/v1/qserve/report").json()["data"]
    assert [(one["worker"], one["role"]) for one in report] == [(name, "chat") for name in NAMES]
    assert [one["num_restarts"] for one in report] == [0, 1]
    assert all(one["memory"]["resident_bytes"] for one in report if one["worker"] != "chat-1")
    for name in NAMES:
        assert len([line for line in service.lines if line.startswith(f"{name} ")]) == 1
        assert f'qserve_gateway_worker_ready{{worker="{name}"}}' in httpx.get(f"{service.url}/metrics").text
