"""Streams go on where the engine is killed; kill -9 of qserve leaves no process of vLLM.

tests/conftest.py runs it last: nothing is served afterwards.
"""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

import httpx
import psutil

from tests.tiny.serving.served import Service
from tests.tiny.serving.vllm_processes import command, family, shared_memory, the
from tests.tiny.vllm_served.conftest import KEY
from tests.tiny.vllm_served.test_continued import QUESTION, RANDOM

GOING_ON: dict[str, tuple[str, dict[str, Any]]] = {
    "greedy": ("/v1/completions", {"prompt": "one two three", "temperature": 0, "ignore_eos": True, "max_tokens": 200}),
    "drawn": ("/v1/chat/completions", {"messages": QUESTION, **RANDOM, "seed": 5, "max_tokens": 150}),
    # Of more sequences than an eighth of the places: each is a request of its own.
    "choices": ("/v1/chat/completions", {"messages": QUESTION, **RANDOM, "seed": 6, "max_tokens": 150, "n": 2}),
}


def whole(text: str) -> dict[int, str]:
    """What the choices say, and that it is told once that they have ended."""
    texts: dict[int, str] = {}
    events = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    assert events.count("[DONE]") == 1 and events[-1] == "[DONE]"
    for event in map(json.loads, events[:-1]):
        assert "error" not in event, event
        for choice in event["choices"]:
            said = choice.get("text") or choice.get("delta", {}).get("content") or ""
            texts[choice["index"]] = texts.get(choice["index"], "") + said
    return texts


async def test_streams_go_on_where_the_engine_was_killed(service: Service) -> None:
    """The only worker is started again meanwhile, and comments keep their connections."""
    headers = {"authorization": f"Bearer {KEY}"}
    async with httpx.AsyncClient(base_url=service.url, headers=headers, timeout=300) as client:

        async def ask(kind: str, begun: asyncio.Event) -> str:
            path, fields = GOING_ON[kind]
            text = ""
            async with client.stream("POST", path, json={"model": "demo", "stream": True, **fields}) as reply:
                assert reply.status_code == 200, await reply.aread()
                async for part in reply.aiter_text():
                    text += part
                    if text.count("data: ") > 12:
                        begun.set()
            return text

        undisturbed = {kind: whole(await ask(kind, asyncio.Event())) for kind in GOING_ON}
        begun = {kind: asyncio.Event() for kind in GOING_ON}
        streams = {kind: asyncio.create_task(ask(kind, event)) for kind, event in begun.items()}
        await asyncio.gather(*(event.wait() for event in begun.values()))
        the(service, "engine").kill()
        texts = {kind: await stream for kind, stream in streams.items()}
        metrics = (await client.get("/metrics")).text
    assert {kind: whole(text) for kind, text in texts.items()} == undisturbed
    assert ": another worker continues this answer" in texts["greedy"]
    continued = re.search(r"^qserve_gateway_streams_continued_total\S* (\S+)$", metrics, re.MULTILINE)
    assert continued is not None and float(continued[1]) >= 3


def test_kill_9_of_qserve_leaves_no_process_of_vllm(service: Service) -> None:
    before = family(service)
    segments = shared_memory(before)
    assert any("VLLM::EngineCor" in command(process) for process in before)
    service.process.kill()
    _, alive = psutil.wait_procs(before, timeout=60)
    assert not alive, f"qserve was killed, and these are left: {alive}"
    assert not [segment for segment in segments if segment.exists()], "shared memory was not given back"
