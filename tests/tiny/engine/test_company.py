"""By compiled layers, what a sequence draws is the same to the last bit, whoever else is in its steps."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from functools import partial
from random import Random
from typing import Any

import pytest
import torch

from qserve.engines.transformers.worker.batching.paged import PagedBatcher
from qserve.engines.transformers.worker.sampling.params import TokenChoice
from qserve.model.cpu.activations import round_activations
from qserve.model.cpu.build import why_none
from qserve.model.cpu.kernels import can_attend
from qserve.model.cpu.linear import CompiledLinear, takes_bfloat16
from qserve.model.cpu.matrix import Matrix, bfloat16_matrix
from qserve.model.cpu.quantized import four_bit_weight, int8_weight
from qserve.model.packed_linear import pack_linears
from tests.tiny.engine.families import build
from tests.tiny.engine.running import choices_of, prompts, running, sequence

pytestmark = pytest.mark.skipif(why_none() is not None, reason=str(why_none()))
NUM, NUM_TOKENS, PAGE = 64, 12, 32
KINDS: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"temperature": 1.0},
    {"temperature": 1.5, "top_p": 0.9},
    {"temperature": 0.7, "top_k": 20},
    {"temperature": 1.0, "repetition_penalty": 1.2},
    {"temperature": 1.2, "min_p": 0.02, "frequency_penalty": 0.5},
]


FORMATS: dict[str, Callable[[torch.Tensor], Matrix | None]] = {
    "bf16": bfloat16_matrix,
    "int8": int8_weight,
    "nf4": partial(four_bit_weight, kind="nf4", is_nested=False),
}


def model_in(name: str) -> Any:
    """A small one, packed as a large one is, its activations rounded where they are by default."""
    model = build("qwen3", inner=128).bfloat16()
    for layer in model.model.layers:
        for part in (layer.self_attn, layer.mlp):
            for child, linear in list(part.named_children()):
                if type(linear) is torch.nn.Linear:
                    matrix = FORMATS[name](linear.weight.data)
                    assert matrix is not None
                    setattr(part, child, CompiledLinear(matrix))
    assert pack_linears(model) == 1  # its head
    assert (round_activations(model) > 0) == (name != "bf16")
    return model


@pytest.fixture(params=FORMATS)
async def batcher(request: pytest.FixtureRequest) -> AsyncIterator[PagedBatcher]:
    if not takes_bfloat16() or not can_attend(32):
        pytest.skip("this processor has no steps in one call")
    limits = {"kv_cache_tokens": 64 * 512, "max_num_seqs": NUM, "max_num_batched_tokens": 200}
    async with running(PagedBatcher, model_in(request.param), **limits) as made:
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
