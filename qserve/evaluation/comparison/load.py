"""A fixed load for comparisons: a number of concurrent streams with the same requests for each candidate.

Closed loop: each stream sends its next request when its last one is answered. Times are the client's.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from qserve.client.answer import NotJson, Refused, Unreachable
from qserve.client.api import ApiClient
from qserve.client.stream import NoEvent
from qserve.errors import WorkerFailed
from qserve.evaluation.server import ServedModel
from qserve.units import TOGETHER_MS

__all__ = ["LoadFigures", "chat_load", "reward_load"]

_WARM_UP_REQUESTS = 2
_Item = TypeVar("_Item")


@dataclass(frozen=True)
class LoadFigures:
    """Medians over requests. `tpot_ms` is (E2E − TTFT) / (tokens − 1), as `vllm bench` has it.

    `tpot_ms` is None where the tokens of an answer came together. Tokens are those of the answers; for a reward model,
    which answers none, those that were read, and its `ttft_ms` and `tpot_ms` are None.
    """

    num_streams: int
    num_requests: int
    tokens_per_s: float
    ttft_ms: float | None
    tpot_ms: float | None
    e2e_ms: float


@dataclass(frozen=True)
class _Timed:
    ttft_s: float
    e2e_s: float
    num_tokens: int


_Ask = Callable[[ApiClient, _Item], Awaitable[_Timed]]


def chat_load(served: ServedModel, prompts: Sequence[str], *, num_streams: int, num_tokens: int) -> LoadFigures:
    """Answer every prompt with exactly `num_tokens` tokens, `num_streams` at a time.

    Raises WorkerFailed where the server refuses a request.
    """

    async def ask(client: ApiClient, prompt: str) -> _Timed:
        return await _chat(client, served, prompt, num_tokens)

    timed, took_s = asyncio.run(_run(served, prompts, ask, num_streams))
    ttft_ms = _median_ms([one.ttft_s for one in timed])
    tpot_ms = _median_ms([(one.e2e_s - one.ttft_s) / max(1, one.num_tokens - 1) for one in timed])
    return _figures(timed, took_s, num_streams, ttft_ms, None if tpot_ms < TOGETHER_MS else tpot_ms)


def reward_load(served: ServedModel, batches: Sequence[Sequence[Any]], *, num_streams: int) -> LoadFigures:
    """Score every batch of conversations, one request each, `num_streams` at a time.

    Raises WorkerFailed likewise.
    """

    async def ask(client: ApiClient, batch: Sequence[Any]) -> _Timed:
        return await _reward(client, served, batch)

    timed, took_s = asyncio.run(_run(served, batches, ask, num_streams))
    return _figures(timed, took_s, num_streams, None, None)


def _figures(
    timed: Sequence[_Timed], took_s: float, num_streams: int, ttft_ms: float | None, tpot_ms: float | None
) -> LoadFigures:
    rate = round(sum(one.num_tokens for one in timed) / took_s, 2)
    return LoadFigures(num_streams, len(timed), rate, ttft_ms, tpot_ms, _median_ms([one.e2e_s for one in timed]))


def _median_ms(seconds: Sequence[float]) -> float:
    return round(1e3 * statistics.median(seconds), 3)


async def _run(
    served: ServedModel, items: Sequence[_Item], ask: _Ask[_Item], num_streams: int
) -> tuple[list[_Timed], float]:
    """Every item once, after a warm-up; the times, and the seconds that all of it took."""
    waiting, timed = list(reversed(items)), list[_Timed]()
    try:
        async with ApiClient(served.url, served.api_key) as client:
            for item in items[:_WARM_UP_REQUESTS]:
                await ask(client, item)

            async def stream() -> None:
                while waiting:
                    timed.append(await ask(client, waiting.pop()))

            began = time.perf_counter()
            await asyncio.gather(*(stream() for _ in range(num_streams)))
            return timed, time.perf_counter() - began
    except Refused as refused:
        raise WorkerFailed(f"{served.url} refused a request of the load: {refused.answer.text}") from None
    except (Unreachable, NoEvent, NotJson) as error:
        raise WorkerFailed(f"{served.url} stopped answering under a load of {num_streams} streams: {error}") from error


async def _chat(client: ApiClient, served: ServedModel, prompt: str, num_tokens: int) -> _Timed:
    body: dict[str, Any] = {
        "model": served.model,
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": num_tokens,
        "min_tokens": num_tokens,
        "ignore_eos": True,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    began = time.perf_counter()
    first, usage_tokens = 0.0, 0
    async for event in client.stream("/v1/chat/completions", body):
        if not first and event.get("choices"):
            first = time.perf_counter() - began
        usage_tokens = (event.get("usage") or {}).get("completion_tokens", usage_tokens)
    return _Timed(first, time.perf_counter() - began, usage_tokens)


async def _reward(client: ApiClient, served: ServedModel, batch: Sequence[Any]) -> _Timed:
    body = {"model": served.model, "conversations": list(batch)}
    began = time.perf_counter()
    rows = (await client.ask("POST", "/v1/reward", body)).raise_for_status().json()["data"]
    took_s = time.perf_counter() - began
    return _Timed(took_s, took_s, sum(row["num_tokens"] for row in rows))
