"""The clients of bench/soak.py: what they ask, and what may become of it."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import aiohttp

__all__ = ["KINDS", "Kind", "Outcome", "ask"]

WORDS = ("the", "a", "of", "sum", "red", "green", "seven", "nine", "answer", "count", "letters", "why", "is", "it")


@dataclass(frozen=True)
class Outcome:
    """How one request ended.

    Attributes:
        kind, role: what was asked, and of which worker ("" for none).
        began_s, seconds: by time.monotonic.
        status: 0 where no answer came.
        is_whole: the answer was complete, or an error in the API's shape.
        what: the error's code, or what went wrong.
    """

    kind: str
    role: str
    began_s: float
    seconds: float
    status: int
    is_whole: bool
    what: str = ""


@dataclass(frozen=True)
class Kind:
    """A kind of request: how often, of whom, the statuses that are right, and the request itself."""

    name: str
    weight: int
    role: str
    right: frozenset[int]
    send: Callable[[aiohttp.ClientSession, str, random.Random], Awaitable[tuple[int, bool, str]]]


async def ask(kind: Kind, http: aiohttp.ClientSession, url: str, draw: random.Random) -> Outcome:
    """One request, whatever becomes of it."""
    began_s = time.monotonic()
    try:
        status, is_whole, what = await kind.send(http, url, draw)
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        status, is_whole, what = 0, False, f"{type(error).__name__}: {error}"
    return Outcome(kind.name, kind.role, began_s, time.monotonic() - began_s, status, is_whole, what)


def _text(draw: random.Random, num_words: int) -> str:
    return " ".join(draw.choices(WORDS, k=num_words))


def _chat(draw: random.Random, num_words: int, max_tokens: int, **fields: Any) -> dict[str, Any]:
    message = {"role": "user", "content": _text(draw, num_words)}
    return {"model": "demo", "messages": [message], "max_tokens": max_tokens, **fields}


async def _post(http: aiohttp.ClientSession, url: str, body: Any) -> tuple[int, bool, str]:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    headers = {"content-type": "application/json"}
    async with http.post(url, data=data, headers=headers) as answer:
        document = await answer.json()
        code = "" if answer.status < 400 else str(document["error"]["code"])
        return answer.status, True, code


async def _stream(http: aiohttp.ClientSession, url: str, draw: random.Random) -> tuple[int, bool, str]:
    body = _chat(draw, draw.randint(3, 60), draw.randint(8, 96), stream=True, ignore_eos=True)
    async with http.post(f"{url}/v1/chat/completions", json=body) as answer:
        data = await answer.read()
    if answer.status != 200:
        return answer.status, True, str(json.loads(data)["error"]["code"])
    if b'"error"' in data:
        return 502, True, "error event"
    return 200, data.endswith(b"data: [DONE]\n\n"), ""


async def _cancel(http: aiohttp.ClientSession, url: str, draw: random.Random) -> tuple[int, bool, str]:
    """Leaves after the first piece, or before it."""
    body = _chat(draw, 20, 512, stream=True, ignore_eos=True)
    async with http.post(f"{url}/v1/chat/completions", json=body) as answer:
        if answer.status != 200:
            return answer.status, True, str((await answer.json())["error"]["code"])
        await answer.content.readany()
        await asyncio.sleep(draw.random() * 0.3)
    return 200, True, "cancelled"


async def _whole(http: aiohttp.ClientSession, url: str, draw: random.Random) -> tuple[int, bool, str]:
    return await _post(
        http, f"{url}/v1/chat/completions", _chat(draw, 30, draw.randint(4, 48), n=draw.choice([1, 1, 2]))
    )


async def _echo(http: aiohttp.ClientSession, url: str, draw: random.Random) -> tuple[int, bool, str]:
    """lm-eval's question."""
    prompts = [_text(draw, draw.randint(5, 120)) for _ in range(draw.randint(1, 8))]
    body = {"model": "demo", "prompt": prompts, "max_tokens": 0, "echo": True, "logprobs": 1}
    return await _post(http, f"{url}/v1/completions", body)


async def _long(http: aiohttp.ClientSession, url: str, draw: random.Random) -> tuple[int, bool, str]:
    """As long as just fits."""
    return await _post(http, f"{url}/v1/chat/completions", _chat(draw, draw.randint(300, 500), 8))


async def _too_long(http: aiohttp.ClientSession, url: str, draw: random.Random) -> tuple[int, bool, str]:
    """A quarter of a megabyte and more: through the process for large bodies."""
    return await _post(http, f"{url}/v1/chat/completions", _chat(draw, draw.choice([5_000, 60_000, 300_000]), 8))


async def _reward(http: aiohttp.ClientSession, url: str, draw: random.Random) -> tuple[int, bool, str]:
    responses = [_text(draw, draw.randint(1, 200)) for _ in range(draw.randint(1, 12))]
    body = {"model": "demo-reward", "prompt": _text(draw, 20), "responses": responses}
    return await _post(http, f"{url}/v1/reward", body)


_BAD: tuple[tuple[str, Any], ...] = (
    ("/v1/chat/completions", b'{"model": "demo", "messages": ['),
    ("/v1/chat/completions", {"model": "demo", "messages": [], "max_tokens": 1}),
    ("/v1/chat/completions", {"model": "demo", "messages": [{"role": "user", "content": "x"}], "tempreature": 1}),
    ("/v1/chat/completions", {"model": "nobody", "messages": [{"role": "user", "content": "x"}]}),
    ("/v1/completions", {"model": "demo", "prompt": ["x"] * 3000}),
    ("/v1/reward", {"model": "demo-reward", "prompt": "x", "responses": []}),
    ("/v1/nothing", {}),
)


async def _bad(http: aiohttp.ClientSession, url: str, draw: random.Random) -> tuple[int, bool, str]:
    path, body = draw.choice(_BAD)
    return await _post(http, url + path, body)


_OK = frozenset({200})
KINDS = (
    Kind("stream", 28, "chat", _OK, _stream),
    Kind("cancel", 10, "chat", _OK, _cancel),
    Kind("chat", 14, "chat", _OK, _whole),
    Kind("echo", 10, "chat", _OK, _echo),
    Kind("long prompt", 6, "chat", frozenset({200, 400}), _long),
    Kind("too long", 2, "chat", frozenset({400}), _too_long),
    Kind("reward", 20, "reward", _OK, _reward),
    Kind("bad", 10, "", frozenset({400, 404}), _bad),
)
