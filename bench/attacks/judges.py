"""Attacks by what a judge model says: verdicts that a pattern reads for long."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

from attacks.recipes import with_recipe
from attacks.service import Attack, Service, in_words

__all__ = ["ATTACKS"]

_LONG = "long"
_RECIPE = "parts:\n- {{name: judged, judge: pointwise, url: '{url}/v1', model: judge}}\n"


async def long_verdicts(service: Service) -> str:
    """Two responses whose verdicts are 30,000 line breaks; one response of another client, which is judged at once."""
    async with _judge() as url, with_recipe(service, _RECIPE.format(url=url)) as judged:
        await judged.post_as_other("/v1/reward", _asked("first"))
        attack = [asyncio.create_task(judged.post("/v1/reward", _asked(f"{_LONG} {n}"))) for n in range(2)]
        await asyncio.sleep(0.3)
        waited = await judged.post_as_other("/v1/reward", _asked("short"))
        statuses = [status for status, _ in await asyncio.gather(*attack)]
    return f"a short verdict: {in_words(waited)}; the two: {statuses}"


def _asked(response: str) -> dict[str, Any]:
    return {"prompt": "Say something.", "responses": [response]}


@asynccontextmanager
async def _judge() -> AsyncIterator[str]:
    """An OpenAI server of this process: its verdict of a response that begins with `long` is of line breaks."""
    app = web.Application()
    app.router.add_post("/v1/chat/completions", _verdict)
    app.router.add_get("/v1/models", _models)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def _models(request: web.Request) -> web.Response:
    return web.json_response({"object": "list", "data": [{"id": "judge", "object": "model"}]})


async def _verdict(request: web.Request) -> web.Response:
    question = str((await request.json())["messages"])
    said = "\n" * 30_000 if f"{_LONG} " in question else "Score: 7"
    message = {"role": "assistant", "content": said}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    return web.json_response({"id": "1", "object": "chat.completion", "model": "judge", "choices": [choice]})


ATTACKS: tuple[Attack, ...] = (long_verdicts,)
