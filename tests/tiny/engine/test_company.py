"""In bf16 by compiled layers, what a sequence draws is the same to the last bit, whoever else is in its steps."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from random import Random
from typing import Any

import pytest

from qserve.engine.transformers.batching.paged import PagedBatcher
from qserve.engine.transformers.sampling.params import TokenChoice
from qserve.model.cpu.build import why_none
from qserve.model.cpu.kernels import can_attend
from qserve.model.cpu.linear import takes_bfloat16
from qserve.model.packed_linear import pack_linears
from tests.tiny.engine.families import build
from tests.tiny.engine.running import choices_of, prompts, running, sequence

pytestmark = pytest.mark.skipif(why_none() is not None, reason=str(why_none()))
NUM, NUM_TOKENS, PAGE = 64, 12, 32
KINDS: list[dict[str, Any]] = [
    {"temperature": 0.0}, {"temperature": 1.0}, {"temperature": 1.5, "top_p": 0.9}, {"temperature": 0.7, "top_k": 20},
    {"temperature": 1.0, "repetition_penalty": 1.2}, {"temperature": 1.2, "min_p": 0.02, "frequency_penalty": 0.5},
]  # fmt: skip


@pytest.fixture
async def batcher() -> AsyncIterator[PagedBatcher]:
    """Over a small model: it is packed as a large one is."""
    if not takes_bfloat16() or not can_attend(32):
        pytest.skip("this processor has no steps in one call")
    model = build("qwen3").bfloat16()
    assert pack_linears(model) > 0
    limits = {"kv_cache_tokens": 64 * 512, "max_num_seqs": NUM, "max_num_batched_tokens": 200}
    async with running(PagedBatcher, model, **limits) as made:
        assert made.attention == "compiled"
        yield made


async def test_64_draw_together_in_every_order_what_each_draws_alone(batcher: PagedBatcher) -> None:
    asked = prompts(NUM - 2, 20, step=3)
    # Of the last token of one a page is left over: shared pages leave it to be read by itself.
    asked += [asked[40][: 2 * PAGE + 1], asked[41][: 3 * PAGE]]

    async def said(index: int, run: str) -> list[TokenChoice]:
        kind = KINDS[index % len(KINDS)]
        one = sequence(f"{run} {index}", asked[index], NUM_TOKENS, seed=index, num_logprobs=0, **kind)
        return await choices_of(batcher, one)

    alone = [await said(index, "alone") for index in range(NUM)]
    for seed in range(2):
        order = Random(seed).sample(range(NUM), NUM)
        together = await asyncio.gather(*(said(index, f"order {seed}") for index in order))
        assert dict(zip(order, together, strict=True)) == dict(enumerate(alone))
