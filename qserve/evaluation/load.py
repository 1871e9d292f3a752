"""A fixed load over the chat endpoint: so many streams at once, the same prompts for everyone who is compared.

Closed loop: each stream sends its next request when its last one is answered. Times are the client's.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp

from qserve.errors import UsageError
from qserve.evaluation.server import ServedModel

__all__ = ["LoadFigures", "fixed_load"]

_WARM_UP_REQUESTS = 2


@dataclass(frozen=True)
class LoadFigures:
    """Medians over requests. `tpot_ms` is (E2E − TTFT) / (tokens − 1), as `vllm bench` has it."""

    num_streams: int
    num_requests: int
    output_tokens_per_s: float
    ttft_ms: float
    tpot_ms: float
    e2e_ms: float


@dataclass(frozen=True)
class _Timed:
    ttft_s: float
    e2e_s: float
    num_tokens: int


async def fixed_load(served: ServedModel, prompts: Sequence[str], *, num_streams: int, num_tokens: int) -> LoadFigures:
    """Answer every prompt with exactly `num_tokens` tokens, `num_streams` at a time.

    Raises UsageError where the server refuses a request.
    """
    headers = {"authorization": f"Bearer {served.api_key}"} if served.api_key else {}
    async with aiohttp.ClientSession(headers=headers, timeout=aiohttp.ClientTimeout(total=None)) as session:
        for prompt in prompts[:_WARM_UP_REQUESTS]:
            await _ask(session, served, prompt, num_tokens)
        waiting = list(reversed(prompts))
        timed: list[_Timed] = []

        async def stream() -> None:
            while waiting:
                timed.append(await _ask(session, served, waiting.pop(), num_tokens))

        began = time.perf_counter()
        await asyncio.gather(*(stream() for _ in range(num_streams)))
        took_s = time.perf_counter() - began
    return LoadFigures(
        num_streams=num_streams,
        num_requests=len(timed),
        output_tokens_per_s=round(sum(one.num_tokens for one in timed) / took_s, 2),
        ttft_ms=round(1e3 * statistics.median(one.ttft_s for one in timed), 2),
        tpot_ms=round(
            1e3 * statistics.median((one.e2e_s - one.ttft_s) / max(1, one.num_tokens - 1) for one in timed), 3
        ),
        e2e_ms=round(1e3 * statistics.median(one.e2e_s for one in timed), 2),
    )


async def _ask(session: aiohttp.ClientSession, served: ServedModel, prompt: str, num_tokens: int) -> _Timed:
    body: dict[str, Any] = {
        "model": served.model, "messages": [{"role": "user", "content": prompt}], "max_tokens": num_tokens,
        "min_tokens": num_tokens, "ignore_eos": True, "temperature": 0, "stream": True,
        "stream_options": {"include_usage": True},
    }  # fmt: skip
    began = time.perf_counter()
    first, told = 0.0, 0
    async with session.post(f"{served.url}/v1/chat/completions", json=body) as response:
        if response.status != 200:
            raise UsageError(f"{served.url} refused a request of the load: {await response.text()}")
        async for line in response.content:
            if not line.startswith(b"data: {"):
                continue
            event = json.loads(line[6:])
            if not first and event.get("choices"):
                first = time.perf_counter() - began
            told = (event.get("usage") or {}).get("completion_tokens", told)
    return _Timed(first, time.perf_counter() - began, told)
