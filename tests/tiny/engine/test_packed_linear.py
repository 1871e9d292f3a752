"""Packed linear layers: the same numbers, only where they pay, and the weights counted once."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from torch import nn
from transformers import Qwen3Config, Qwen3ForCausalLM

from qserve.model import packed_linear
from qserve.model.cpu.linear import CompiledLinear
from qserve.model.mapped import MappedFiles
from qserve.model.measured_weights import weights_bytes
from qserve.model.packed_linear import PackedLinear, pack_linears
from qserve.model.stored.embedding import MappedEmbedding

PACKED = (PackedLinear, CompiledLinear)

pytestmark = pytest.mark.skipif(
    not torch.ops.mkldnn._is_mkldnn_bf16_supported(), reason="this CPU has no bf16 kernels to pack for"
)


def make_model(*, tied: bool = True, dtype: torch.dtype = torch.bfloat16) -> Qwen3ForCausalLM:
    config = Qwen3Config(
        hidden_size=64,
        intermediate_size=160,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        vocab_size=300,
        tie_word_embeddings=tied,
        attention_bias=True,
    )
    torch.manual_seed(0)
    model = Qwen3ForCausalLM(config).to(dtype).eval()
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            nn.init.normal_(parameter)
    return model


@pytest.fixture(autouse=True)
def _small_models_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed_linear, "_WORTH_PACKING_BYTES", 0)


@pytest.mark.parametrize("rows", [1, 2, 8, 33])
def test_a_packed_layer_computes_the_same(rows: int) -> None:
    torch.manual_seed(1)
    plain = nn.Linear(160, 96, dtype=torch.bfloat16)
    x = torch.randn(1, rows, 160, dtype=torch.bfloat16)
    with torch.no_grad():
        packed = PackedLinear(plain)(x)
        exact = nn.functional.linear(x.double(), plain.weight.double(), plain.bias.double())
        error = (packed.double() - exact).abs().max()
        plain_error = (plain(x).double() - exact).abs().max()
    assert packed.shape == exact.shape
    assert error <= 1.5 * plain_error + 1e-3


def test_a_packed_model_says_the_same() -> None:
    model = make_model()
    plain = copy.deepcopy(model)
    assert pack_linears(model) == 2 * 7  # four of attention and three of the MLP in each layer
    ids = torch.arange(24)[None]
    with torch.no_grad():
        ours, theirs = model(input_ids=ids).logits.float(), plain(input_ids=ids).logits.float()
    assert torch.equal(ours.argmax(-1), theirs.argmax(-1))
    torch.testing.assert_close(ours, theirs, atol=3e-2, rtol=3e-2)


def test_a_tied_head_stays_and_a_head_of_its_own_is_packed() -> None:
    tied, untied = make_model(tied=True), make_model(tied=False)
    pack_linears(tied)
    pack_linears(untied)
    assert type(tied.lm_head) is nn.Linear
    assert isinstance(untied.lm_head, PACKED)
    assert tied.lm_head.weight.data_ptr() == tied.get_input_embeddings().weight.data_ptr()


def test_a_tied_head_is_packed_where_the_embedding_can_stay_in_its_file(tmp_path: Path) -> None:
    plain = make_model(tied=True)
    plain.save_pretrained(tmp_path)
    model = Qwen3ForCausalLM.from_pretrained(tmp_path, dtype=torch.bfloat16).eval()
    before, files = weights_bytes(model), MappedFiles.of(tmp_path)
    assert pack_linears(model, files) == 2 * 7 + 1
    files.detach(model)
    assert isinstance(model.lm_head, PACKED)
    table = model.get_input_embeddings()
    assert type(table) is MappedEmbedding
    assert files.holds(table.weight)
    assert weights_bytes(model) == before  # the weight counts once, and lies in memory once
    assert (model.dtype, model.device.type) == (torch.bfloat16, "cpu")
    ids = torch.arange(24)[None]
    with torch.no_grad():
        ours, theirs = model(input_ids=ids).logits.float(), plain(input_ids=ids).logits.float()
    assert torch.equal(table(ids), plain.get_input_embeddings()(ids))
    torch.testing.assert_close(ours, theirs, atol=3e-2, rtol=3e-2)


def test_weights_are_counted_as_before() -> None:
    model = make_model()
    before = weights_bytes(model)
    pack_linears(model)
    assert weights_bytes(model) == before


def test_other_dtypes_hooks_and_small_models_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    assert pack_linears(make_model(dtype=torch.float32)) == 0
    hooked = make_model()
    hooked.model.layers[0]._hf_hook = object()
    assert pack_linears(hooked) == 0
    monkeypatch.setattr(packed_linear, "_WORTH_PACKING_BYTES", 10**9)
    monkeypatch.setattr(packed_linear, "takes_bfloat16", lambda: False)
    assert pack_linears(make_model()) == 0
