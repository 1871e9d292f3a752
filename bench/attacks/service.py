"""What an attack has in hand: the service, its two clients' requests, and words for what an honest client saw."""

from __future__ import annotations

import asyncio
import json
import subprocess
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import aiohttp
import psutil

__all__ = ["CHAT", "LIMIT_S", "Attack", "Service", "chat", "in_words"]

LIMIT_S = 90.0
CHAT = "/v1/chat/completions"
_JSON = {"content-type": "application/json"}


@dataclass
class Service:
    """What is attacked. `http` has the attacker's key; the honest stream, and who asks `as_other`, have `other_key`."""

    url: str
    process: subprocess.Popen[bytes]
    http: aiohttp.ClientSession
    other_key: str = ""

    async def post(self, path: str, body: Any, **fields: Any) -> tuple[int, float]:
        """Status (0: none, -1: not within the limit) and seconds."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        began_s = time.monotonic()
        try:
            async with (
                asyncio.timeout(LIMIT_S),
                self.http.post(self.url + path, data=data, headers={**_JSON, **fields}) as answer,
            ):
                await answer.read()
                return answer.status, time.monotonic() - began_s
        except TimeoutError:
            return -1, time.monotonic() - began_s
        except (aiohttp.ClientError, OSError):
            return 0, time.monotonic() - began_s

    async def post_as_other(self, path: str, body: Any) -> tuple[int, float]:
        """As `post`, of the client with the other key."""
        return await self.post(path, body, authorization=f"Bearer {self.other_key}")

    def worker(self, module: str) -> psutil.Process:
        """The process of a worker."""
        return next(one for one in psutil.Process(self.process.pid).children() if module in one.cmdline())


Attack = Callable[[Service], Awaitable[str]]


def chat(text: str, **fields: Any) -> dict[str, Any]:
    return {"model": "demo", "messages": [{"role": "user", "content": text}], "max_tokens": 4, **fields}


def in_words(answer: tuple[int, float]) -> str:
    status, seconds = answer
    return f"{status if status > 0 else 'no answer'} after {seconds:.2f} s"
