"""The running batch: what comes out is what `generate` says, under pressure too; who is cancelled stops."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch

from qserve.engine.transformers.batching import Sequence, SequenceFailed
from qserve.engine.transformers.paged import PagedBatcher, _choose
from qserve.engine.transformers.sampling import SamplingParams, SequenceSampler, TokenChoice

CPU = torch.device("cpu")


def sequence(name: str, prompt: list[int], max_tokens: int, **params: Any) -> Sequence:
    sampler = SequenceSampler(SamplingParams(**{"temperature": 0.0, **params}), prompt, CPU)
    return Sequence(name, prompt, max_tokens, frozenset(), sampler)


async def tokens_of(batcher: PagedBatcher, one: Sequence) -> list[int]:
    batcher.submit(one)
    items = [await one.outbox.get() for _ in range(one.max_tokens)]
    assert not any(isinstance(item, SequenceFailed) for item in items), items
    return [item.token_id for item in items]


def generated(model: Any, prompt: list[int], max_tokens: int) -> list[int]:
    ids = torch.tensor([prompt])
    out = model.generate(
        ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=max_tokens, eos_token_id=None
    )
    return out[0, len(prompt) :].tolist()


def prompts(num: int, length: int) -> list[list[int]]:
    generator = torch.Generator().manual_seed(3)
    return [torch.randint(0, 1000, (length + 7 * i,), generator=generator).tolist() for i in range(num)]


async def idle(batcher: PagedBatcher) -> None:
    async with asyncio.timeout(10):
        while batcher.load().num_running or batcher.load().num_waiting:
            await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    "limits",
    [
        {},
        {"max_num_batched_tokens": 48},  # prompts arrive in chunks
        {"kv_cache_tokens": 320},  # room for two or three of the ten at a time
        {"max_num_seqs": 2},
    ],
    ids=["roomy", "chunked", "tight pool", "two at once"],
)
async def test_a_batch_says_what_generate_says(
    model: Any, batching: Callable[..., Any], limits: dict[str, int]
) -> None:
    asked = prompts(10, 30)
    expected = [generated(model, prompt, 24) for prompt in asked]
    async with batching(**limits) as batcher:
        ones = [sequence(f"r{i}", prompt, 24) for i, prompt in enumerate(asked)]
        assert await asyncio.gather(*(tokens_of(batcher, one) for one in ones)) == expected
        await idle(batcher)


async def test_shared_prefixes_change_nothing(model: Any, batching: Callable[..., Any]) -> None:
    prefix = prompts(1, 96)[0]
    asked = [[*prefix, index, index + 1] for index in range(6)]
    async with batching() as batcher:
        first = await tokens_of(batcher, sequence("first", asked[0], 16))
        ones = [sequence(f"r{i}", prompt, 16) for i, prompt in enumerate(asked)]
        got = await asyncio.gather(*(tokens_of(batcher, one) for one in ones))
    assert got == [generated(model, prompt, 16) for prompt in asked]
    assert got[0] == first


async def test_a_sampled_sequence_draws_the_same_in_company_and_in_a_tight_pool(batching: Callable[..., Any]) -> None:
    asked = prompts(8, 30)

    def ones() -> list[Sequence]:
        return [sequence(f"r{i}", p, 20, temperature=1.0, seed=i, top_p=0.9) for i, p in enumerate(asked)]

    async with batching() as batcher:
        alone = [await tokens_of(batcher, one) for one in ones()]
    async with batching(kv_cache_tokens=256) as batcher:
        assert await asyncio.gather(*(tokens_of(batcher, one) for one in ones())) == alone


async def test_cancel_frees_the_pool(batching: Callable[..., Any]) -> None:
    async with batching() as batcher:
        one = sequence("one", prompts(1, 30)[0], 2000)
        batcher.submit(one)
        await one.outbox.get()
        assert batcher.load().num_running == 1
        batcher.cancel(one)
        await idle(batcher)
        batcher.cancel(one)  # harmless for one that has ended


async def test_a_cancellation_that_the_library_loses_is_repeated(
    batching: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It drops cancellations of requests that it has not read yet."""
    async with batching() as batcher:
        one = sequence("one", prompts(1, 30)[0], 4000)
        batcher.submit(one)
        await one.outbox.get()
        with monkeypatch.context() as losing:
            losing.setattr(batcher._manager, "cancel_request", lambda _: None)
            batcher.cancel(one)
        await idle(batcher)
        assert one.sampler.num_drawn < 2000, "it ran to its end"


async def test_exclusive_holds_the_batch_and_lets_it_go_on(model: Any, batching: Callable[..., Any]) -> None:
    prompt = prompts(1, 30)[0]
    async with batching() as batcher:
        one = sequence("one", prompt, 60)
        running = asyncio.create_task(tokens_of(batcher, one))
        await asyncio.sleep(0.05)

        def hold() -> int:
            with batcher.exclusive():
                before = one.sampler.num_drawn
                time.sleep(0.1)
                return one.sampler.num_drawn - before

        assert await asyncio.to_thread(hold) == 0
        assert await running == generated(model, prompt, 60)


def test_a_row_that_is_no_number_fails_its_own_sequence() -> None:
    """Overflow in float16 shows as NaN in some rows only; the others go on."""
    one = sequence("one", [1], 5)
    failed = _choose(one, torch.full((8,), float("nan")), 0)
    assert isinstance(failed, SequenceFailed)
    assert "not a number" in str(failed)
    fine = _choose(one, torch.arange(8.0), 7)
    assert isinstance(fine, TokenChoice)
    assert fine.token_id == 7
