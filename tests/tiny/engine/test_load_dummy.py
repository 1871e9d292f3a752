"""Random weights from a config alone: everything but the numbers is as it will be."""

from __future__ import annotations

import json
import math
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from qserve.demo import chat_model_path
from qserve.detect import detect
from qserve.errors import UsageError
from qserve.hub import resolve
from qserve.model.cpu import quantized_loading
from qserve.model.cpu.build import why_none
from qserve.model.cpu.experts import CompiledExperts
from qserve.model.cpu.linear import CompiledLinear
from qserve.model.dummy import RandomTensor, stand_in_tokenizer
from qserve.model.load import LoadedModel, load
from qserve.planner import Plan, PlanRequest, make_plan

# torch's own, on the first import of its compiler.
pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.script_method:DeprecationWarning")


def config_folder(folder: Path, **changes: Any) -> Path:
    """A folder that holds the demo's config.json and nothing else."""
    config = json.loads((chat_model_path() / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "dtype": "bfloat16", **changes}))
    return folder


def load_dummy(folder: Path, quant: str = "auto") -> tuple[LoadedModel, Plan]:
    request = PlanRequest(engine="transformers", quant=quant)
    plan = make_plan(resolve(str(folder)), replace(detect(), devices=()), request)
    return load(folder, plan, "dummy"), plan


@pytest.mark.parametrize("quant", ["auto", "fp32", "bnb-int8", "bnb-nf4"])
def test_it_holds_what_the_plan_says_and_generates(tmp_path: Path, quant: str) -> None:
    loaded, plan = load_dummy(config_folder(tmp_path), quant)
    assert loaded.weights_bytes == pytest.approx(plan.devices[0].weights_bytes, rel=0.01)
    assert any("NOISE" in note for note in loaded.notes)
    prompt = loaded.tokenizer("What is 12+30?", return_tensors="pt")
    answer = loaded.model.generate(**prompt, max_new_tokens=4, do_sample=False)
    assert answer.shape[1] > prompt.input_ids.shape[1]
    with torch.no_grad():
        logits = loaded.model(**prompt).logits.float()
    assert logits.isfinite().all()
    assert logits.std() > 0.01  # no layer is dead


SMALL = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "vocab_size": 600,
    "max_position_embeddings": 512,
    "dtype": "bfloat16",
    "tie_word_embeddings": False,
}
SPARSE = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
}
SHARED = {"shared_expert_intermediate_size": 32}
LINEAR = {
    "layer_types": ["linear_attention"] * 3 + ["full_attention"],
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "linear_conv_kernel_dim": 4,
}


@pytest.mark.parametrize(
    ("model_type", "extra"),
    [
        ("qwen2", {}),
        ("qwen2_moe", {**SPARSE, **SHARED}),
        ("qwen3_moe", SPARSE),
        ("qwen3_next", {**SPARSE, **SHARED, **LINEAR}),
        ("qwen3_5_text", LINEAR),
        ("qwen3_5_moe_text", {**SPARSE, **SHARED, **LINEAR}),
    ],
)
def test_every_family(tmp_path: Path, model_type: str, extra: dict[str, Any]) -> None:
    """Fused experts, routers, linear attention: names that a checkpoint does not have and the model does."""
    config = {**SMALL, **extra, "model_type": model_type}
    (tmp_path / "config.json").write_text(json.dumps(config))
    loaded, plan = load_dummy(tmp_path)
    assert loaded.weights_bytes == pytest.approx(plan.devices[0].weights_bytes, rel=0.02)
    assert all(parameter.device.type == "cpu" for parameter in loaded.model.parameters())
    with torch.no_grad():
        logits = loaded.model(torch.arange(40)[None]).logits
    assert logits.isfinite().all()


@pytest.mark.skipif(why_none() is not None, reason=str(why_none()))
@pytest.mark.parametrize(("scheme", "held"), [("bnb-int8", "int8"), ("bnb-nf4", "nf4")])
def test_experts_are_quantized_while_loading_and_planned_so(
    tmp_path: Path, scheme: str, held: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A layer at a time: what is in 16 bit at once is never more than that."""
    config = {**SMALL, **SPARSE, "moe_intermediate_size": 128, "model_type": "qwen3_moe"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    in_16_bit: list[Any] = []
    at_once: list[int] = []
    quantize = quantized_loading.quantized_experts_from

    def watched(experts: Any, made: Any) -> Any:
        in_16_bit.append(weakref.ref(experts))
        at_once.append(sum(one() is not None for one in in_16_bit))
        return quantize(experts, made)

    monkeypatch.setattr(quantized_loading, "quantized_experts_from", watched)
    loaded, plan = load_dummy(tmp_path, scheme)
    experts = [module for module in loaded.model.modules() if isinstance(module, CompiledExperts)]
    assert [{one.format for one in module.matrices} for module in experts] == [{held}] * 4
    assert max(at_once) == 1
    assert loaded.weights_bytes == pytest.approx(plan.devices[0].weights_bytes, rel=0.02)
    assert not any("1849" in note for note in (*plan.notes, *loaded.notes))
    with torch.no_grad():
        assert loaded.model(torch.arange(40)[None]).logits.isfinite().all()


def test_an_untied_head_gets_numbers_of_its_own(tmp_path: Path) -> None:
    loaded, _ = load_dummy(config_folder(tmp_path, tie_word_embeddings=False))
    head, embedding = loaded.model.lm_head, loaded.model.get_input_embeddings().weight
    numbers = head.matrix.dense() if isinstance(head, CompiledLinear) else head.weight
    assert not torch.equal(numbers.to(embedding.dtype), embedding)


def test_what_is_stored_quantized_can_not_be_made_up(tmp_path: Path) -> None:
    quantization = {"quant_method": "awq", "bits": 4, "group_size": 64}
    with pytest.raises(UsageError, match=r"dummy.*stored as awq"):
        load_dummy(config_folder(tmp_path, quantization_config=quantization))


@pytest.mark.parametrize("size", [(7,), (3, 50), (90, 7)])
def test_more_numbers_than_were_drawn(size: tuple[int, ...]) -> None:
    drawn = torch.randn(101).bfloat16()
    tensor = RandomTensor("x.up_proj.weight", size, drawn, 95)[...]
    assert tensor.shape == size
    expected = drawn.repeat(1 + (95 + math.prod(size)) // 101)
    assert torch.equal(tensor.flatten()[:6], drawn[95:])
    assert torch.equal(tensor.flatten(), torch.cat([drawn[95:], expected])[: math.prod(size)])


def test_every_id_is_text_and_text_comes_back() -> None:
    tokenizer = stand_in_tokenizer(1000)
    assert len(tokenizer) == 1000
    assert all(isinstance(tokenizer.decode([index]), str) for index in range(1000))
    text = "Grüße, 春天 🙂"
    assert tokenizer.decode(tokenizer.encode(text)) == text
    chat = tokenizer.apply_chat_template([{"role": "user", "content": "hi"}], tokenize=False)
    assert tokenizer.eos_token in chat
