"""Steps through compiled kernels: attention is torch's, a body is as close to float32 as the library's own."""

from __future__ import annotations

import asyncio
import ctypes
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, Qwen3Config, Qwen3ForCausalLM

from qserve.engines.transformers.worker.attention.report import attention_report
from qserve.engines.transformers.worker.batching.paged import PagedBatcher
from qserve.model import packed_linear
from qserve.model.cpu import kernels
from qserve.model.cpu.build import _built, library, why_none
from qserve.model.cpu.dense import DenseBody
from qserve.model.cpu.linear import CompiledLinear, takes_bfloat16
from qserve.model.cpu.matrix import Matrix, codes_matrix, int8_matrix
from tests.tiny.engine.families import build
from tests.tiny.engine.running import choices_of, prompts, running, sequence, tokens_of

pytestmark = pytest.mark.skipif(why_none() is not None, reason=str(why_none()))

Batching = Callable[..., AbstractAsyncContextManager[PagedBatcher]]
LENGTHS = [1, 5, 256, 257, 700, 31, 1500]


@pytest.fixture
def rounded(tiny: Path) -> Batching:
    """`async with rounded(…) as batcher`: over a model in bf16."""

    def run(**limits: int) -> AbstractAsyncContextManager[PagedBatcher]:
        return running(PagedBatcher, AutoModelForCausalLM.from_pretrained(tiny, dtype=torch.bfloat16).eval(), **limits)

    return run


def attended(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, size: int) -> torch.Tensor:
    """In float32: the last of `query` [tokens, ..] sees all of `key` [keys, ..], each one before one key less."""
    q, k, v = (part.float().view(1, len(part), -1, size).transpose(1, 2) for part in (query, key, value))
    seen = torch.ones(len(query), len(key), dtype=torch.bool).tril(len(key) - len(query))
    mixed = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=seen, enable_gqa=True)
    return mixed.transpose(1, 2)[0].flatten(1)


def cache_of(lengths: list[int], width: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Keys and values in no order, the places of each sequence's, and where they begin and end among these."""
    torch.manual_seed(width)
    key, value = (torch.randn(sum(lengths) + 50, width, dtype=torch.bfloat16) for _ in range(2))
    ends = torch.tensor(lengths).cumsum(0)
    return key, value, torch.randperm(len(key))[: sum(lengths)], torch.stack((ends - torch.tensor(lengths), ends), 1)


@pytest.mark.parametrize("size", [32, 64, 80, 128])
@pytest.mark.parametrize("heads", [(4, 4), (14, 2), (32, 8)])
def test_sequences_that_decode_read_their_pages(size: int, heads: tuple[int, int]) -> None:
    key, value, places, spans = cache_of(LENGTHS, heads[1] * size)
    query = 3 * torch.randn(10, heads[0] * size, dtype=torch.bfloat16)
    rows = torch.tensor([9, 0, 3, 4, 5, 2, 7])
    out = torch.full_like(query, 7.0)
    kernels.attend_pages(query, key, value, size, size**-0.5, rows=rows, spans=spans, places=places, out=out)
    for row, (first, last) in zip(rows.tolist(), spans.tolist(), strict=True):
        own = places[first:last]
        true = attended(query[row : row + 1], key[own], value[own], size)
        assert torch.allclose(out[row : row + 1].float(), true, atol=2e-2, rtol=2e-2)
    assert (out[[1, 6, 8]] == 7.0).all()  # rows of others


def test_a_sequence_reads_its_pages_beside_others_as_it_does_alone() -> None:
    """To the last bit: how its keys are divided depends on their number alone."""
    size, heads = 32, (4, 2)
    key, value, places, spans = cache_of(LENGTHS, heads[1] * size)
    query = 3 * torch.randn(len(LENGTHS), heads[0] * size, dtype=torch.bfloat16)
    together, alone = torch.empty_like(query), torch.empty_like(query)
    every = torch.arange(len(LENGTHS))
    for rows, out in ((every, together), *((row, alone) for row in every.split(1))):
        own = spans[rows].contiguous()
        kernels.attend_pages(query, key, value, size, size**-0.5, rows=rows, spans=own, places=places, out=out)
    assert torch.equal(together, alone)


@pytest.mark.parametrize("size", [32, 128])
def test_prompts_whose_beginning_is_in_the_pages(size: int) -> None:
    if not kernels.can_attend(size):
        pytest.skip("this processor has no AVX512-VNNI")
    num_new = [1, 5, 40, 257, 12, 31, 8]
    key, value, places, spans = cache_of(LENGTHS, 2 * size)
    query = 3 * torch.randn(sum(num_new) + 1, 6 * size, dtype=torch.bfloat16)
    stops = torch.tensor(num_new).cumsum(0)
    texts = torch.column_stack((stops - torch.tensor(num_new), stops, spans, torch.full((len(stops),), -1)))
    out = torch.full_like(query, 7.0)
    kernels.attend(query, key, value, size, size**-0.5, texts.contiguous(), places=places, out=out)
    for start, stop, first, last, _ in texts.tolist():
        own = places[first:last]
        true = attended(query[start:stop], key[own], value[own], size)
        assert torch.allclose(out[start:stop].float(), true, atol=2e-2, rtol=2e-2)
    assert (out[-1] == 7.0).all()  # of no text


@pytest.mark.parametrize("kernels_of", ["all kernels", "without AVX512-VNNI", "products of our own"])
@pytest.mark.parametrize("limits", [{}, {"max_num_batched_tokens": 48}, {"kv_cache_tokens": 320}], ids=str)
@pytest.mark.parametrize("family", ["qwen3", "qwen3-moe"])
async def test_every_step_is_as_close_to_float32_as_the_library_is(
    family: str, limits: dict[str, int], kernels_of: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prompts whole and in chunks, shared beginnings, sequences that decode beside them, and in a tight pool."""
    if kernels_of == "without AVX512-VNNI":
        monkeypatch.setattr(kernels, "can_attend", lambda size: False)
    exact, model = build(family), build(family).bfloat16()
    if kernels_of == "products of our own":
        if not takes_bfloat16():
            pytest.skip("this processor multiplies by oneDNN's products")
        monkeypatch.setattr(packed_linear, "_WORTH_PACKING_BYTES", 0)
        packed_linear.pack_linears(model)
        assert DenseBody.of(model.get_decoder()).layers is not None
    ours, library = [], []
    async with running(PagedBatcher, model, **limits) as batcher:
        assert batcher.attention == "compiled"
        prefix = prompts(1, 64)[0]
        asked = [*prompts(8, 30), *([*prefix, index] for index in range(4))]
        first = await choices_of(batcher, sequence("first", [*prefix, 0], 4, num_logprobs=0))
        jobs = [choices_of(batcher, sequence(f"r{i}", one, 12, num_logprobs=0)) for i, one in enumerate(asked)]
        answers = [first, *await asyncio.gather(*jobs)]
        model.set_attn_implementation("sdpa")
        for prompt, choices in zip([[*prefix, 0], *asked], answers, strict=True):
            ids = [*prompt, *(choice.token_id for choice in choices)]
            told = torch.tensor([choice.logprob for choice in choices])
            for found, to in ((logprobs(model, ids, len(prompt)), library), (told, ours)):
                to.append((found - logprobs(exact, ids, len(prompt))).abs())
    assert torch.cat(ours).mean() <= 1.3 * torch.cat(library).mean() + 1e-4
    assert torch.cat(ours).max() <= 2 * torch.cat(library).max() + 1e-3


def logprobs(model: Any, ids: list[int], start: int) -> torch.Tensor:
    """Of the tokens from `start` on, by the library alone."""
    with torch.inference_mode():
        rows = model(torch.tensor([ids])).logits[0].float().log_softmax(-1)
    return rows[torch.arange(start - 1, len(ids) - 1), torch.tensor(ids[start:])]


async def test_the_library_has_its_forward_back_when_the_batcher_stops(rounded: Batching) -> None:
    async with rounded() as batcher:
        body = batcher._model.get_decoder()
        assert "forward" in vars(body)
    assert "forward" not in vars(body)


async def test_without_a_compiler_the_library_computes_and_the_report_says_so(
    rounded: Batching, monkeypatch: pytest.MonkeyPatch
) -> None:
    _built.cache_clear()
    monkeypatch.setenv("CC", "no-such-compiler")
    try:
        async with rounded() as batcher:
            assert batcher.attention == "sdpa"
            assert len(await tokens_of(batcher, sequence("one", prompts(1, 30)[0], 4))) == 4
            assert "no-such-compiler" in attention_report(batcher._model, batcher.attention)
    finally:
        _built.cache_clear()


async def test_float32_stays_the_librarys(batching: Batching) -> None:
    async with batching() as batcher:
        assert batcher.attention == "sdpa"
        assert "faster kernels" not in attention_report(batcher._model, batcher.attention)


def stored_as(kind: str, weight: torch.Tensor) -> Matrix:
    """`weight` rounded to a format of 8 or 4 bits."""
    if kind == "int8":
        largest = weight.abs().amax(1)
        made = int8_matrix((weight / largest[:, None] * 127).round().to(torch.int8), largest / 127)
    else:
        blocks = weight.view(len(weight), -1, 64)
        largest = blocks.abs().amax(2)
        codes = (blocks / largest[..., None] * 7.5 + 7.5).round().to(torch.uint8).view_as(weight)
        made = codes_matrix(kind, codes, torch.arange(16) / 7.5 - 1, largest)
    assert made is not None
    return made


@pytest.mark.parametrize("num_threads", [0, 3], ids=["OpenMP's threads", "threads of our own"])
@pytest.mark.parametrize("kind", ["int8", "nf4"])
async def test_steps_over_stored_weights_are_as_close_to_them(kind: str, num_threads: int) -> None:
    """Prompts and steps of several sequences, against the library with the stored weights in float32."""
    torch.manual_seed(5)
    config = Qwen3Config(
        vocab_size=1000,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        initializer_range=0.2,
    )
    exact = Qwen3ForCausalLM(config).eval()
    rounded, model = Qwen3ForCausalLM(config).eval(), Qwen3ForCausalLM(config).eval()
    for other in (rounded, model):
        other.load_state_dict(exact.state_dict())
    model = model.bfloat16()
    for name, linear in exact.named_modules():
        if type(linear) is torch.nn.Linear and name != "lm_head":
            matrix = stored_as(kind, linear.weight.data)
            linear.weight.data = matrix.dense()
            rounded.get_submodule(name).weight.data = matrix.dense()
            parent, _, own = name.rpartition(".")
            setattr(model.get_submodule(parent), own, CompiledLinear(matrix))
    if not kernels.can_attend(32):
        pytest.skip("this processor has no AVX512-VNNI")
    dense = DenseBody.of(model.get_decoder())
    assert dense is not None
    assert dense.layers is not None
    compiled = library()
    assert compiled is not None
    compiled.use_threads(ctypes.c_long(num_threads))
    try:
        ours, theirs = [], []
        async with running(PagedBatcher, model, max_num_batched_tokens=48) as batcher:
            assert batcher.attention == "compiled"
            asked = prompts(6, 20)
            jobs = [choices_of(batcher, sequence(f"r{i}", one, 10, num_logprobs=0)) for i, one in enumerate(asked)]
            answers = await asyncio.gather(*jobs)
        rounded = rounded.bfloat16()
        for library_model in (exact, rounded):  # the batcher has set its own in the config that they share
            library_model.set_attn_implementation("sdpa")
        for prompt, choices in zip(asked, answers, strict=True):
            ids = [*prompt, *(choice.token_id for choice in choices)]
            true = logprobs(exact, ids, len(prompt))
            ours.append((torch.tensor([choice.logprob for choice in choices]) - true).abs())
            theirs.append((logprobs(rounded, ids, len(prompt)) - true).abs())
        assert torch.cat(ours).mean() <= 1.3 * torch.cat(theirs).mean() + 1e-4
    finally:
        compiled.use_threads(ctypes.c_long(0))
