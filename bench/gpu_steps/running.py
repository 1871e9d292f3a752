"""A loaded model behind the engine's own batcher, and waves of prompts through it."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import torch

from qserve.engines.transformers.worker.batching.batcher import Sequence
from qserve.engines.transformers.worker.batching.make import make_batcher
from qserve.engines.transformers.worker.sampling.params import SamplingParams
from qserve.engines.transformers.worker.sampling.sampler import SequenceSampler
from qserve.model.failures import SequenceFailed
from qserve.planner import Plan

__all__ = ["GREEDY", "SAMPLED", "Wave", "batching", "random_prompts", "wave"]

GREEDY = SamplingParams(temperature=0.0)
# Qwen3's own generation_config.json.
SAMPLED = SamplingParams(temperature=0.7, top_p=0.8, top_k=20, seed=0)

_TIMEOUT_S = 120
_numbers = itertools.count()
# Of the wave that runs: who waits for a token of theirs.
_waiting: list[Sequence] = []


@dataclass(frozen=True)
class Wave:
    """`first_s` until every stream had its first token; `rest_tokens` came after that, in `rest_s`."""

    tokens: list[list[int]]
    first_s: float
    rest_s: float
    rest_tokens: int


@asynccontextmanager
async def batching(model: Any, plan: Plan) -> AsyncIterator[Any]:
    """The batcher that the engine would take, running."""
    loop = asyncio.get_running_loop()
    batcher = make_batcher(model, loop, plan)

    def give_up(error: BaseException) -> None:
        loop.call_soon_threadsafe(_give_up, error)

    batcher.start(on_death=give_up)
    try:
        yield batcher
    finally:
        batcher.stop()


async def wave(batcher: Any, prompts: list[list[int]], new_tokens: int, params: SamplingParams = GREEDY) -> Wave:
    """All prompts at once, `new_tokens` each."""
    jobs = [_sequence(prompt, new_tokens, params) for prompt in prompts]
    _waiting[:] = jobs
    async with asyncio.timeout(_TIMEOUT_S):
        start = time.perf_counter()
        for job in jobs:
            batcher.submit(job)
        firsts = [await _next(job) for job in jobs]
        first_s = time.perf_counter() - start
        # Those that were first have drawn more meanwhile.
        rest_tokens = len(jobs) * (new_tokens - 1) - sum(job.outbox.qsize() for job in jobs)
        rests = [[await _next(job) for _ in range(new_tokens - 1)] for job in jobs]
        rest_s = time.perf_counter() - start - first_s
        if not rest_tokens:  # a tiny model: all of them had come before this looked, so they count from the start
            rest_tokens, rest_s = len(jobs) * (new_tokens - 1), first_s + rest_s
    tokens = [[first, *rest] for first, rest in zip(firsts, rests, strict=True)]
    return Wave(tokens, first_s, rest_s, rest_tokens)


def random_prompts(count: int, length: int, vocab_size: int, seed: int) -> list[list[int]]:
    """Different ones, so that no prefix is shared."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, min(vocab_size, 1000), (count, length), generator=generator).tolist()


def _sequence(prompt: list[int], new_tokens: int, params: SamplingParams) -> Sequence:
    sampler = SequenceSampler(params, prompt)
    return Sequence(f"job-{next(_numbers)}", prompt, new_tokens, frozenset(), sampler)


def _give_up(error: BaseException) -> None:
    """The batcher died: nobody's token comes any more."""
    for job in _waiting:
        job.outbox.put_nowait(SequenceFailed(f"generation stopped: {type(error).__name__}: {error}"))


async def _next(job: Sequence) -> int:
    item = await job.outbox.get()
    if isinstance(item, SequenceFailed):
        raise item
    return item.token_id
