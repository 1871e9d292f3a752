"""The running batch: what comes out is what `generate` says, under pressure too; who is cancelled stops."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch

from qserve.engines.transformers.kernels.kv_pages import PAGE_TOKENS, whole_pages
from qserve.engines.transformers.worker.batching.batcher import Sequence
from qserve.engines.transformers.worker.batching.paged import PagedBatcher
from qserve.engines.transformers.worker.batching.rows.batcher import RowBatcher
from qserve.engines.transformers.worker.sampling.batch import choose_tokens
from qserve.engines.transformers.worker.sampling.params import TokenChoice
from qserve.model.failures import SequenceFailed
from tests.tiny.engine.families import build
from tests.tiny.engine.running import generated, idle, prompts, running, sequence, tokens_of


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


async def test_a_sequence_may_be_cancelled_at_any_moment(batching: Callable[..., Any]) -> None:
    """Before the thread knows it, while it is prefilled, while it decodes, and in the step in which it ends."""
    async with batching() as batcher:
        for delay_s in (0, 0.001, 0.005, 0.02, 0.1):
            one = sequence("one", prompts(1, 30)[0], 4000 if delay_s < 0.1 else 2)
            batcher.submit(one)
            await asyncio.sleep(delay_s)
            batcher.cancel(one)
            await idle(batcher)
            assert one.sampler.num_sampled < 2000, "it ran to its end"
            assert not batcher._stages._known, "what nobody receives is not kept"


async def test_exclusive_holds_the_batch_and_lets_it_go_on(model: Any, batching: Callable[..., Any]) -> None:
    prompt = prompts(1, 30)[0]
    async with batching() as batcher:
        one = sequence("one", prompt, 60)
        running = asyncio.create_task(tokens_of(batcher, one))
        await asyncio.sleep(0.05)

        def hold() -> int:
            with batcher.exclusive():
                before = one.sampler.num_sampled
                time.sleep(0.1)
                return one.sampler.num_sampled - before

        assert await asyncio.to_thread(hold) == 0
        assert await running == generated(model, prompt, 60)


def test_a_row_that_is_no_number_fails_its_own_sequence() -> None:
    """Overflow in float16 shows as NaN in some rows only; the others go on."""
    broken, fine = sequence("broken", [1], 5), sequence("fine", [1], 5)
    scores = torch.stack([torch.full((8,), float("nan")), torch.arange(8.0)])
    (_, failed), (_, choice) = choose_tokens([broken, fine], scores)
    assert isinstance(failed, SequenceFailed)
    assert "not a number" in str(failed)
    assert isinstance(choice, TokenChoice)
    assert choice.token_id == 7


@pytest.mark.parametrize("kind", [PagedBatcher, RowBatcher])
@pytest.mark.parametrize("length", [1, 2, 31, 32, 33, 300, 1000])
async def test_a_pool_of_whole_pages_serves_its_length(kind: type[Any], length: int) -> None:
    """Alone, to its last token, at `--max-num-seqs 1` and any step."""
    limits = {"kv_cache_tokens": whole_pages(length, PAGE_TOKENS), "max_num_seqs": 1, "max_num_batched_tokens": 64}
    async with running(kind, build("qwen3"), **limits) as batcher:
        assert batcher.kv_cache_tokens >= length
        prompt = prompts(1, max(1, length - 5))[0]
        max_tokens = max(1, length - len(prompt))
        assert len(await tokens_of(batcher, sequence("one", prompt, max_tokens))) == max_tokens
