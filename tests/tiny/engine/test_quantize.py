"""Quantizing while loading, on real layers: what it changes, what it leaves alone, and what the plan says of it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, BitsAndBytesConfig, Qwen2MoeConfig, Qwen3Config, Qwen3MoeConfig, set_seed

from bench.random_checkpoint import write_tokenizer
from qserve.demo import chat_model_path
from qserve.demo.tasks import TASKS, held_out_exchanges
from qserve.errors import MissingExtra
from qserve.model import quantize
from qserve.model.cpu.build import why_none
from qserve.model.cpu.linear import CompiledLinear
from qserve.model.load import LoadedModel
from qserve.model.measured_weights import weights_by_kind
from tests.tiny.engine.loading import load_planned, plan_of

# torch's own, on the first import of its compiler.
pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.script_method:DeprecationWarning")

QUESTION = "What is 12+30? Sort these numbers: 31, 4, 15. Reverse the words: apple house"
SCHEMES = ("bnb-int8", "bnb-nf4", "bnb-nf4-single", "bnb-fp4")


@pytest.fixture(scope="module")
def random_folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., str]:
    """`random_folder(config)`: a checkpoint of random weights in bf16."""

    def make(config: Any) -> str:
        folder = tmp_path_factory.mktemp(config.model_type)
        set_seed(0)
        config.bos_token_id, (config.eos_token_id, config.pad_token_id) = None, write_tokenizer(folder, 512)
        AutoModelForCausalLM.from_config(config).to(torch.bfloat16).save_pretrained(folder)
        return str(folder)

    return make


SMALL = {
    "vocab_size": 512,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 512,
}
SPARSE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64}


def logits(loaded: LoadedModel) -> torch.Tensor:
    ids = loaded.tokenizer(QUESTION, return_tensors="pt").input_ids
    with torch.no_grad():
        answer: torch.Tensor = loaded.model(ids).logits.float()
    return answer


def test_float32_is_plain_transformers() -> None:
    loaded = load_planned("demo", "fp32", "float32")
    plain = AutoModelForCausalLM.from_pretrained(chat_model_path(), dtype=torch.float32).eval()
    ids = loaded.tokenizer(QUESTION, return_tensors="pt").input_ids
    with torch.no_grad():
        assert torch.equal(logits(loaded), plain(ids).logits)


def test_float16_is_loaded_as_such() -> None:
    loaded = load_planned("demo", "fp16")
    assert {parameter.dtype for parameter in loaded.model.parameters()} == {torch.float16}


@pytest.mark.parametrize("scheme", SCHEMES)
def test_what_is_quantized_and_what_is_not(scheme: str) -> None:
    model = load_planned("demo", scheme).model
    for name, module in model.named_modules():
        if name == "lm_head":
            assert not isinstance(module, CompiledLinear) or module.matrix.format == "bfloat16"
        elif isinstance(module, CompiledLinear):
            assert module.matrix.format == {"bnb-int8": "int8", "bnb-fp4": "fp4"}.get(scheme, "nf4"), name
        elif name.endswith("_proj"):
            assert module.weight.dtype == (torch.int8 if scheme == "bnb-int8" else torch.uint8), name
        elif hasattr(module, "weight"):
            assert module.weight.dtype == torch.bfloat16, name
    assert "routers" not in weights_by_kind(model)


@pytest.mark.parametrize("scheme", ["bf16", "fp32", *SCHEMES])
def test_weights_as_planned(scheme: str) -> None:
    planned = plan_of("demo", scheme).devices[0].weights_bytes
    assert load_planned("demo", scheme).weights_bytes == pytest.approx(planned, rel=0.01)


# 208 questions; docs/results/loading.md has more.
QUESTIONS_A_TASK = 8


def right_answers(loaded: LoadedModel, num: int) -> float:
    """Share of `num` held-out questions of each task that the model answers exactly, greedily."""
    exchanges = [exchange for task in TASKS.values() for exchange in held_out_exchanges(task, num, 1)]
    tokenizer = loaded.tokenizer
    tokenizer.padding_side = "left"
    prompts = [
        tokenizer.apply_chat_template(
            [{"role": "user", "content": exchange.question}], tokenize=False, add_generation_prompt=True
        )
        for exchange in exchanges
    ]
    batch = tokenizer(prompts, return_tensors="pt", padding=True, add_special_tokens=False)
    ids = loaded.model.generate(**batch, max_new_tokens=48, do_sample=False)[:, batch.input_ids.shape[1] :]
    answers = tokenizer.batch_decode(ids, skip_special_tokens=True)
    pairs = zip(answers, exchanges, strict=True)
    return sum(answer.strip() == exchange.answer for answer, exchange in pairs) / len(exchanges)


def test_accuracy_on_the_demos_tasks() -> None:
    """The promise: within 2 points of 16 bit for int8, within 5 for nf4."""
    exact = right_answers(load_planned("demo", "bf16"), QUESTIONS_A_TASK)
    assert exact > 0.8
    assert right_answers(load_planned("demo", "bnb-int8"), QUESTIONS_A_TASK) >= exact - 0.02
    assert right_answers(load_planned("demo", "bnb-nf4"), QUESTIONS_A_TASK) >= exact - 0.05


def test_int8_does_not_warn_at_every_matmul(caplog: pytest.LogCaptureFixture) -> None:
    loaded = load_planned("demo", "bnb-int8")
    with caplog.at_level(logging.WARNING):
        logits(loaded)
    assert not caplog.records


def test_compute_dtype_is_the_plans() -> None:
    """bitsandbytes' fused kernel on a CPU rounds to bf16; in float32 the layer must not."""
    layer = load_planned("demo", "bnb-nf4", "float32").model.model.layers[0].mlp.up_proj
    import bitsandbytes

    exact = bitsandbytes.functional.dequantize_4bit(layer.weight.data, layer.weight.quant_state)
    x = torch.randn(3, layer.in_features)
    with torch.no_grad():
        answer = layer(x)
    assert answer.dtype == torch.float32
    torch.testing.assert_close(answer, x @ exact.float().T, atol=1e-5, rtol=1e-5)


def test_odd_shapes_compute_all_the_same(random_folder: Callable[..., str]) -> None:
    """The fused kernel asserts whole blocks, in the middle of a request."""
    odd = random_folder(Qwen3Config(**{**SMALL, "hidden_size": 96, "intermediate_size": 144, "head_dim": 24}))
    difference = (logits(load_planned(odd, "bnb-nf4")) - logits(load_planned(odd, "bf16"))).abs().max()
    assert difference < 0.5


@pytest.mark.parametrize("config", [Qwen3MoeConfig, Qwen2MoeConfig])
@pytest.mark.parametrize("scheme", ["bnb-int8", "bnb-nf4"])
def test_routers_stay_and_experts_are_quantized(random_folder: Callable[..., str], config: type, scheme: str) -> None:
    """By our own products, which take them as they are held; in float32 the library's stay, and are told."""
    if why_none() is not None:
        pytest.skip(str(why_none()))
    shared = {"shared_expert_intermediate_size": 128} if config is Qwen2MoeConfig else {}
    folder = random_folder(config(**SMALL, **SPARSE, **shared))
    num_weights = 2 * 4 * 3 * 64 * 128  # layers, experts, matrices, their shape
    loaded, held_as = load_planned(folder, scheme), scheme.removeprefix("bnb-")
    held = weights_by_kind(loaded.model)
    assert set(held["routers"]) == {"bfloat16"}
    assert set(held["experts"]) == {held_as, "float32"}
    assert held["experts"][held_as] == num_weights * (1 if held_as == "int8" else 0.5)
    assert not any("bitsandbytes" in note for note in (*loaded.notes, *plan_of(folder, scheme).notes))
    assert loaded.weights_bytes == pytest.approx(plan_of(folder, scheme).devices[0].weights_bytes, rel=0.03)
    exact = load_planned(folder, scheme, "float32")
    assert weights_by_kind(exact.model)["experts"] == {"float32": 4 * num_weights}
    assert any("experts stay in float32" in note for note in exact.notes)
    assert any("stay in 16 bit: bitsandbytes" in note for note in plan_of(folder, scheme, "float32").notes)


def test_without_bitsandbytes_the_command_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quantize.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=r'pip install "bitsandbytes>=0.50"'):
        quantize.in_flight_config(plan_of("demo", "bnb-nf4"), torch.bfloat16)


def test_a_saved_quantized_checkpoint_is_loaded_again(tmp_path: Path) -> None:
    first = load_planned("demo", "bnb-int8")
    eight_bit = BitsAndBytesConfig(load_in_8bit=True)
    AutoModelForCausalLM.from_pretrained(
        chat_model_path(), dtype=torch.bfloat16, quantization_config=eight_bit
    ).save_pretrained(tmp_path)
    first.tokenizer.save_pretrained(tmp_path)
    again = load_planned(str(tmp_path))
    assert again.weights_bytes == pytest.approx(plan_of(str(tmp_path)).devices[0].weights_bytes, rel=0.01)
    torch.testing.assert_close(logits(again), logits(first), atol=1e-2, rtol=1e-2)
