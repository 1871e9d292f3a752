"""A rolling restart of two replicas behind two gateway processes loses no request: neither what runs nor what comes."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from pathlib import Path

import httpx

from tests.tiny.serving.served import Service, until

ECHO = Path(__file__).parents[2] / "echo_engine"
WORDS = "one two three four " * 10


async def echo(client: httpx.AsyncClient, prompt: str) -> str:
    """What comes back, streamed; raises for an error inside the stream, too."""
    body = {"model": "demo", "prompt": prompt, "stream": True, "max_tokens": 400}
    async with client.stream("POST", "/v1/completions", json=body) as response:
        text = (await response.aread()).decode()
        assert response.status_code == 200 and '"error"' not in text, text
        return text


def restarts(service: Service) -> list[int]:
    return [one["num_restarts"] for one in service.get("/v1/qserve/report").json()["data"]]


async def test_sighup_restarts_one_after_the_other_and_no_request_fails(start: Callable[..., Service]) -> None:
    service = start(
        "--engine", "echo", "--replicas", "2", "--gateway-processes", "2", PYTHONPATH=str(ECHO), ECHO_PAUSE_S="0.05"
    ).until_ready()  # fmt: skip
    connections = httpx.Limits(max_keepalive_connections=0)  # so that any process may be asked
    async with httpx.AsyncClient(base_url=service.url, timeout=60, limits=connections) as client:
        running = [asyncio.create_task(echo(client, WORDS)) for _ in range(6)]
        await asyncio.to_thread(until, lambda: service.gauge("qserve_gateway_requests_running") == 6, 60, "they begin")
        service.process.send_signal(signal.SIGHUP)
        num_asked = 0
        while restarts(service) != [1, 1] or "ready again" not in service.output:
            await asyncio.gather(*(echo(client, "one two") for _ in range(4)))
            num_asked += 4
        whole = await asyncio.gather(*running)
    assert {text.count("data: {") for text in whole} == {whole[0].count("data: {")} and whole[0].count("data: {") > 30
    assert num_asked and "worker_died" not in service.output
    assert service.end() == 0
