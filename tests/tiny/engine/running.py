"""Sequences through a running batcher, and what plain transformers says of the same prompts."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import torch

from qserve.engines.transformers.worker.batching.batcher import Batcher, BatchLimits, Sequence
from qserve.engines.transformers.worker.sampling.params import SamplingParams, TokenChoice
from qserve.engines.transformers.worker.sampling.sampler import SequenceSampler
from qserve.model.failures import SequenceFailed

CPU = torch.device("cpu")


def sequence(name: str, prompt: list[int], max_tokens: int, **params: Any) -> Sequence:
    """Greedy unless `params` (of SamplingParams) say otherwise."""
    settings = SamplingParams(**{"temperature": 0.0, **params})
    return Sequence(name, prompt, max_tokens, settings.stop_token_ids, SequenceSampler(settings, prompt))


async def choices_of(batcher: Batcher, one: Sequence) -> list[TokenChoice]:
    """Submits it and waits for its end. Raises SequenceFailed."""
    batcher.submit(one)
    chosen: list[TokenChoice] = []
    while len(chosen) < one.max_tokens:
        item = await asyncio.wait_for(one.outbox.get(), 60)
        if isinstance(item, SequenceFailed):
            raise item
        chosen.append(item)
        if item.token_id in one.stop_token_ids:
            break
    return chosen


async def tokens_of(batcher: Batcher, one: Sequence) -> list[int]:
    return [choice.token_id for choice in await choices_of(batcher, one)]


def generated(model: Any, prompt: list[int], max_tokens: int) -> list[int]:
    """Greedy, by the library's own `generate`, alone."""
    ids = torch.tensor([prompt])
    out = model.generate(
        ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=max_tokens, eos_token_id=None
    )
    return out[0, len(prompt) :].tolist()


def prompts(num: int, length: int, step: int = 7) -> list[list[int]]:
    """Random ones, each `step` tokens longer than the one before."""
    generator = torch.Generator().manual_seed(3)
    return [torch.randint(0, 1000, (length + step * i,), generator=generator).tolist() for i in range(num)]


async def idle(batcher: Batcher) -> None:
    """Until nothing runs or waits."""
    async with asyncio.timeout(60):
        while batcher.load().num_running or batcher.load().num_waiting:
            await asyncio.sleep(0.01)


@asynccontextmanager
async def running(kind: type[Any], model: Any, **limits: int) -> AsyncIterator[Any]:
    """A batcher of `kind` over `model`; it must not die."""
    died = threading.Event()
    sizes = {"kv_cache_tokens": 4096, "max_num_seqs": 16, "max_num_batched_tokens": 256, **limits}
    batcher = kind(model, asyncio.get_running_loop(), BatchLimits(**sizes))
    batcher.start(on_death=lambda _: died.set())
    try:
        yield batcher
    finally:
        batcher.stop()
    assert not died.is_set()


async def come_and_go(batcher: Any, asked: list[list[int]], num_tokens: int, steps: list[int]) -> list[list[int]]:
    """Tokens after each prompt, which come one after the other into a run; beside each, one that is cancelled in it.

    `steps` grows by one with each step of a run.
    """
    tasks = []
    for index, prompt in enumerate(asked):
        before = len(steps)
        tasks.append(asyncio.create_task(tokens_of(batcher, sequence(f"r{index}", prompt, num_tokens))))
        gone = sequence(f"gone{index}", prompt[::-1], 500)
        batcher.submit(gone)
        async with asyncio.timeout(120):
            while len(steps) < before + 3:
                await asyncio.sleep(0.001)
        batcher.cancel(gone)
    return await asyncio.gather(*tasks)
