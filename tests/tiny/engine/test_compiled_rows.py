"""Steps of hybrids through compiled layers: as close to float32 as the library is, alone and in company."""

from __future__ import annotations

import asyncio
import copy
from typing import Any

import pytest
import torch
from transformers import Qwen3_5ForCausalLM, Qwen3_5TextConfig

from qserve.engines.transformers.worker.batching.rows.batcher import RowBatcher
from qserve.model import packed_linear
from qserve.model.cpu import kernels
from qserve.model.cpu.build import why_none
from qserve.model.cpu.linear import CompiledLinear, takes_bfloat16
from qserve.model.cpu.matrix import Matrix, codes_matrix
from tests.tiny.engine.families import DENSE_HYBRID, HYBRIDS, build
from tests.tiny.engine.running import choices_of, prompts, running, sequence

pytestmark = pytest.mark.skipif(why_none() is not None, reason=str(why_none()))


@pytest.fixture(autouse=True)
def packed_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    if not takes_bfloat16() or not kernels.can_attend(32):
        pytest.skip("this processor multiplies by oneDNN's products")
    monkeypatch.setattr(packed_linear, "_WORTH_PACKING_BYTES", 0)


def packed(family: str) -> Any:
    model = build(family).bfloat16()
    packed_linear.pack_linears(model)
    return model


def logprobs(model: Any, ids: list[int], start: int) -> torch.Tensor:
    """Of the tokens from `start` on, by the library alone."""
    with torch.inference_mode():
        rows = model(torch.tensor([ids])).logits[0].float().log_softmax(-1)
    return rows[torch.arange(start - 1, len(ids) - 1), torch.tensor(ids[start:])]


def errors(exact: Any, rounded: Any, asked: list[Any], answers: list[Any]) -> tuple[torch.Tensor, torch.Tensor]:
    """Of the log-probabilities of `answers`, and of the library's in bf16 for the same tokens, both from float32's."""
    ours, library = [], []
    for prompt, choices in zip(asked, answers, strict=True):
        ids = [*prompt, *(choice.token_id for choice in choices)]
        true = logprobs(exact, ids, len(prompt))
        ours.append((torch.tensor([choice.logprob for choice in choices]) - true).abs())
        library.append((logprobs(rounded, ids, len(prompt)) - true).abs())
    return torch.cat(ours), torch.cat(library)


@pytest.mark.parametrize(
    ("family", "limits"),
    [*((family, {}) for family in HYBRIDS), ("qwen3.5", {"max_num_batched_tokens": 48, "kv_cache_tokens": 320})],
    ids=str,
)
async def test_every_step_is_as_close_to_float32_as_the_library_is(family: str, limits: dict[str, int]) -> None:
    """Prompts whole, of one token and in chunks, sequences that decode beside them, and in a tight pool."""
    exact, rounded, model = build(family), build(family).bfloat16(), packed(family)
    asked = [*prompts(1, 1), *prompts(6, 30)]
    async with running(RowBatcher, model, **limits) as batcher:
        assert batcher.attention == "compiled"
        jobs = [choices_of(batcher, sequence(f"r{i}", one, 12, num_logprobs=0)) for i, one in enumerate(asked)]
        answers = await asyncio.gather(*jobs)
    ours, library = errors(exact, rounded, asked, answers)
    assert ours.mean() <= 1.3 * library.mean() + 1e-4
    assert ours.max() <= 2 * library.max() + 1e-3


async def test_a_sequence_says_in_company_what_it_says_alone() -> None:
    asked = prompts(5, 20, step=23)

    def ones(run: str) -> list[Any]:
        return [sequence(f"{run} {i}", prompt, 10, num_logprobs=0) for i, prompt in enumerate(asked)]

    async with running(RowBatcher, packed("qwen3.5"), max_num_batched_tokens=64) as batcher:
        alone = [await choices_of(batcher, one) for one in ones("alone")]
        together = await asyncio.gather(*(choices_of(batcher, one) for one in ones("together")))
    for a, b in zip(together, alone, strict=True):
        assert [choice.token_id for choice in a] == [choice.token_id for choice in b]
        assert [choice.logprob for choice in a] == pytest.approx([choice.logprob for choice in b], abs=0.05)
    assert [choices[0] for choices in together] == [choices[0] for choices in alone]


async def test_stored_weights_beside_small_products_in_16_bit() -> None:
    """As bitsandbytes leaves a hybrid: in_proj_a and in_proj_b are not quantized."""
    torch.manual_seed(5)
    sizes = {"linear_value_head_dim": 32, "intermediate_size": 128, "initializer_range": 0.1}
    exact = Qwen3_5ForCausalLM(Qwen3_5TextConfig(**{**DENSE_HYBRID, **sizes})).eval()
    rounded, model = (copy.deepcopy(exact) for _ in range(2))
    model = model.bfloat16()
    for name, linear in exact.named_modules():
        if type(linear) is torch.nn.Linear and not name.endswith(("lm_head", "in_proj_a", "in_proj_b")):
            matrix = in_4_bit(linear.weight.data)
            linear.weight.data = rounded.get_submodule(name).weight.data = matrix.dense()
            parent, _, own = name.rpartition(".")
            setattr(model.get_submodule(parent), own, CompiledLinear(matrix))
    packed_linear.pack_linears(model)
    asked = prompts(5, 20)
    async with running(RowBatcher, model, max_num_batched_tokens=64) as batcher:
        assert batcher.attention == "compiled"
        jobs = [choices_of(batcher, sequence(f"r{i}", one, 8, num_logprobs=0)) for i, one in enumerate(asked)]
        answers = await asyncio.gather(*jobs)
    ours, library = errors(exact, rounded.bfloat16(), asked, answers)
    assert ours.mean() <= 1.3 * library.mean() + 1e-4


def in_4_bit(weight: torch.Tensor) -> Matrix:
    blocks = weight.view(len(weight), -1, 64)
    largest = blocks.abs().amax(2)
    codes = (blocks / largest[..., None] * 7.5 + 7.5).round().to(torch.uint8).view_as(weight)
    made = codes_matrix("nf4", codes, torch.arange(16) / 7.5 - 1, largest)
    assert made is not None
    return made


async def test_the_library_has_its_forward_back_when_the_batcher_stops() -> None:
    model = packed("qwen3.5")
    async with running(RowBatcher, model):
        assert "forward" in vars(model.get_decoder())
        assert "forward" in vars(model.get_decoder().layers[0].linear_attn)
    assert "forward" not in vars(model.get_decoder())
    assert "forward" not in vars(model.get_decoder().layers[0].linear_attn)
