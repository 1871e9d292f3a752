"""Layers whose inputs are so long that tiles take them in slices (`inputs_of_a_slice` of matrix.h)."""

from __future__ import annotations

import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from qserve.model.cpu import build
from qserve.model.cpu.layers import CompiledLayers, Reads
from qserve.model.packed_linear import pack_linears

pytestmark = pytest.mark.skipif(build.why_none() is not None, reason=str(build.why_none()))

TOKENS = 530


@torch.inference_mode()
def test_a_long_text_begins_as_its_beginning_alone() -> None:
    """Of 530 rows with a gate, and long inputs before and behind it: to the last bit what 30 give without slices."""
    torch.manual_seed(0)
    config = Qwen3Config(
        hidden_size=4160,
        intermediate_size=4128,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=64,
        vocab_size=64,
    )
    model = Qwen3ForCausalLM(config).bfloat16().eval()
    pack_linears(model)
    layers = CompiledLayers.of(model.model)
    if layers is None:
        pytest.skip("this processor has no products of ours in bf16")
    ids = torch.randint(0, 64, (TOKENS,))

    def states_of(count: int) -> torch.Tensor:
        assert layers is not None
        return layers(ids[:count], torch.arange(count), Reads(torch.tensor([[0, count, 0, count, -1]])))

    assert torch.equal(states_of(TOKENS)[:30], states_of(30))
