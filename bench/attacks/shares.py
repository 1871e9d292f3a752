"""What one client takes of the places that all share: many answers at once, many batches, and what it can learn."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from statistics import median

import aiohttp

from attacks.service import CHAT, Attack, Service, chat, in_words

__all__ = ["ATTACKS"]

_WIDE = {"n": 128, "max_tokens": 2000, "ignore_eos": True}
_BEGUN_S = 30.0
_RUNNING = re.compile(r"qserve_worker_sequences_running\{[^}]*\} ([0-9.]+)")


async def _chat_beside(service: Service, what: str) -> str:
    """Three chats of the other client, one after the other: the slowest."""
    answers = [await service.post_as_other(CHAT, chat("hello")) for _ in range(3)]
    slowest = max(answers, key=lambda answer: answer[1])
    return f"a chat beside {what}: {in_words(slowest)}"


@asynccontextmanager
async def _asking(service: Service, *bodies: tuple[str, object]) -> AsyncIterator[None]:
    """While these requests of the attacker run; it leaves at the end."""
    tasks = [asyncio.create_task(service.post(path, body)) for path, body in bodies]
    try:
        await _begun(service)
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _begun(service: Service) -> None:
    """Until the worker is full."""
    began_s, running = time.monotonic(), 0.0
    while running < 60 and time.monotonic() - began_s < _BEGUN_S:
        await asyncio.sleep(0.2)
        async with service.http.get(f"{service.url}/metrics") as answer:
            running = max(map(float, _RUNNING.findall(await answer.text())), default=0.0)


async def _batch(service: Service, bodies: list[dict[str, object]], key: str = "") -> str:
    """A batch of chats, of the attacker unless `key` says whose; its id."""
    headers = {"authorization": f"Bearer {key}"} if key else {}
    lines = [
        {"custom_id": str(number), "method": "POST", "url": CHAT, "body": body} for number, body in enumerate(bodies)
    ]
    form = aiohttp.FormData({"purpose": "batch"})
    form.add_field("file", "".join(json.dumps(line) + "\n" for line in lines).encode(), filename="lines.jsonl")
    async with service.http.post(f"{service.url}/v1/files", data=form, headers=headers) as answer:
        file_id = (await answer.json())["id"]
    asked = {"input_file_id": file_id, "endpoint": CHAT, "completion_window": "24h"}
    async with service.http.post(f"{service.url}/v1/batches", json=asked, headers=headers) as answer:
        return str((await answer.json())["id"])


async def _cancel(service: Service, batches: list[str]) -> None:
    for batch in batches:
        async with service.http.post(f"{service.url}/v1/batches/{batch}/cancel", json={}) as answer:
            await answer.read()
    await asyncio.sleep(2)  # whoever runs it looks each second


async def answers_of_a_batch(service: Service) -> str:
    """Two lines of a batch with n = 128 and 2,000 tokens each; another client chats beside them."""
    alone = await service.post_as_other(CHAT, chat("hello"))
    batch = await _batch(service, [chat("tell me") | _WIDE for _ in range(2)])
    try:
        await _begun(service)
        return f"{await _chat_beside(service, 'two lines of n = 128')} (alone {alone[1]:.2f} s)"
    finally:
        await _cancel(service, [batch])


async def many_answers(service: Service) -> str:
    """Two chats with n = 128 and 2,000 tokens each; another client chats beside them."""
    alone = await service.post_as_other(CHAT, chat("hello"))
    async with _asking(service, *[(CHAT, chat("tell me") | _WIDE)] * 2):
        return f"{await _chat_beside(service, 'two chats of n = 128')} (alone {alone[1]:.2f} s)"


async def prompts_of_one_request(service: Service) -> str:
    """A list of 2,000 prompts with 1,000 tokens to be generated for each; another client chats beside it."""
    body = {"model": "demo", "prompt": ["a b c"] * 2000, "max_tokens": 1000, "ignore_eos": True}
    alone = await service.post_as_other(CHAT, chat("hello"))
    async with _asking(service, ("/v1/completions", body)):
        return f"{await _chat_beside(service, '2,000 prompts')} (alone {alone[1]:.2f} s)"


async def eight_batches(service: Service) -> str:
    """Eight batches of 200 lines with 300 tokens each; another client's batch of 20 short lines comes behind them."""
    bodies = [chat("tell me", ignore_eos=True) | {"max_tokens": 300} for _ in range(200)]
    batches = [await _batch(service, bodies) for _ in range(8)]
    try:
        await _begun(service)
        key = service.other_key
        began_s, last = time.monotonic(), await _batch(service, [chat("hello") for _ in range(20)], key)
        status = ""
        while status not in ("completed", "failed") and time.monotonic() - began_s < 90:
            await asyncio.sleep(0.2)
            url, headers = f"{service.url}/v1/batches/{last}", {"authorization": f"Bearer {key}"}
            async with service.http.get(url, headers=headers) as answer:
                status = (await answer.json())["status"]
        return f"20 lines behind eight batches: {status} after {time.monotonic() - began_s:.1f} s"
    finally:
        await _cancel(service, batches)


async def guessed_prompt(service: Service) -> str:
    """The attacker asks whether another client has sent a prompt of some 1,000 tokens, by how fast it is answered."""
    times: dict[str, list[float]] = {"sent by another": [], "sent by nobody": []}
    for number in range(5):
        secret, other = (
            f"{what} {number} {time.monotonic()} " + "so it is and so it was " * 150 for what in ("secret", "other")
        )
        await service.post_as_other("/v1/completions", {"model": "demo", "prompt": secret, "max_tokens": 1})
        for name, prompt in (("sent by another", secret), ("sent by nobody", other)):
            body = {"model": "demo", "prompt": prompt, "max_tokens": 1}
            status, seconds = await service.post("/v1/completions", body)
            assert status == 200
            times[name].append(seconds)
    return ", ".join(f"{name}: {median(some):.3f} s" for name, some in times.items())


ATTACKS: tuple[Attack, ...] = (answers_of_a_batch, many_answers, prompts_of_one_request, eight_batches, guessed_prompt)
