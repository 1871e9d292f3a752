"""A rolling restart of two replicas behind two gateway processes loses no request: neither what runs nor what comes."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from pathlib import Path

import httpx

from tests.tiny.serving.served import Service

ECHO = Path(__file__).parents[2] / "echo_engine"
WORDS = "one two three four " * 10
LIMIT_S = 120  # keeps a broken promise from hanging the suite


async def echo(client: httpx.AsyncClient, prompt: str, begun: asyncio.Event) -> int:
    """The events of a stream; `begun` is set with its first one. Raises for an error, inside the stream, too."""
    body = {"model": "demo", "prompt": prompt, "stream": True, "max_tokens": 400}
    async with client.stream("POST", "/v1/completions", json=body) as response:
        assert response.status_code == 200, await response.aread()
        num_events = 0
        async for line in response.aiter_lines():
            assert '"error"' not in line, line
            num_events += line.startswith("data: {")
            begun.set()
    return num_events


def restarts(service: Service) -> list[int]:
    return [one["num_restarts"] for one in service.get("/v1/qserve/report").json()["data"]]


async def test_sighup_restarts_one_after_the_other_and_no_request_fails(start: Callable[..., Service]) -> None:
    service = start(
        "--engine",
        "echo",
        "--replicas",
        "2",
        "--gateway-processes",
        "2",
        "--no-ui",
        PYTHONPATH=str(ECHO),
        ECHO_PAUSE_S="0.05",
    ).until_ready()
    connections = httpx.Limits(max_keepalive_connections=0)  # so that any process may be asked
    async with (
        asyncio.timeout(LIMIT_S),
        httpx.AsyncClient(base_url=service.url, timeout=LIMIT_S, limits=connections) as client,
    ):
        begun = [asyncio.Event() for _ in range(6)]
        running = [asyncio.create_task(echo(client, WORDS, one)) for one in begun]
        for one in begun:
            await one.wait()
        service.process.send_signal(signal.SIGHUP)
        while "rolling restart: chat-0, chat-1 ready again" not in service.output:
            assert await asyncio.gather(*(echo(client, "one two", asyncio.Event()) for _ in range(4))) == [2] * 4
        assert await asyncio.gather(*running) == [40] * 6
    assert restarts(service) == [1, 1]
    assert service.end() == 0
