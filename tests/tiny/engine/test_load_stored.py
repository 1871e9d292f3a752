"""Checkpoints that somebody quantized already: read as they are stored on a CPU; what is not read is refused."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from qserve.demo import chat_model_path
from qserve.engines.transformers.worker.batching.paged import PagedBatcher
from qserve.errors import BrokenCheckpoint, UsageError
from qserve.model.cpu.build import why_none
from qserve.model.cpu.dense import DenseBody
from qserve.model.cpu.kernels import can_attend
from qserve.model.cpu.linear import CompiledLinear
from qserve.model.cpu.matrix import has_int8_activations
from qserve.model.load import LoadedModel, load
from qserve.model.stored.arguments import missing_packages, stored_config
from qserve.model.stored.layouts import ReadableLayers
from qserve.planner.plan import Plan
from tests.tiny.engine.loading import load_planned, plan_of
from tests.tiny.engine.running import running, sequence, tokens_of
from tests.tiny.engine.stored_checkpoints import (
    AWQ,
    FP8,
    GPTQ,
    INT4,
    INT8,
    W8A16,
    W8A16_CHANNEL,
    Packer,
    as_awq,
    as_fp8,
    as_gptq,
    as_int4,
    as_int8,
    make,
)

# torch's own, on the first import of its compiler.
pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.script_method:DeprecationWarning")

GPTQ_8 = {"quant_method": "gptq", "bits": 8, "group_size": 32, "sym": False, "desc_act": True}
FORMATS: dict[str, tuple[Packer, dict[str, Any], str, str]] = {
    "gptq": (as_gptq, GPTQ, "gptq-int4", "int4"),
    "gptq-act-order": (
        partial(as_gptq, group=32, act_order=True, is_symmetric=False),
        {**GPTQ, "group_size": 32, "sym": False, "desc_act": True},
        "gptq-int4",
        "int4",
    ),
    "gptq-8-act-order": (
        partial(as_gptq, bits=8, group=32, act_order=True, is_symmetric=False),
        GPTQ_8,
        "gptq-int8",
        "int8",
    ),
    "gptq-8-channel": (
        partial(as_gptq, bits=8, group=-1),
        {**GPTQ_8, "group_size": -1, "sym": True, "desc_act": False},
        "gptq-int8",
        "int8",
    ),
    "gptq_v2": (
        partial(as_gptq, has_low_zeros=False, is_symmetric=False),
        {**GPTQ, "sym": False, "checkpoint_format": "gptq_v2"},
        "gptq-int4",
        "int4",
    ),
    "awq": (as_awq, AWQ, "awq", "int4"),
    "w4a16": (as_int4, INT4, "w4a16", "int4"),
    "w8a8": (as_int8, INT8, "w8a8", "int8"),
    "w8a16": (partial(as_int4, bits=8), W8A16, "w8a16", "int8"),
    "w8a16-channel": (as_int8, W8A16_CHANNEL, "w8a16", "int8"),
    "fp8": (as_fp8, FP8, "fp8", "fp8"),
}


# Whose activations are rounded where nobody says anything: weights of 4 bits, and what is defined with it.
ROUNDED = {"gptq-int4", "awq", "w4a16", "w8a8"}


def mean_kl(plain: LoadedModel, other: LoadedModel) -> float:
    ids = plain.tokenizer("What is 12+30? Sort: 3, 1, 2.", return_tensors="pt").input_ids
    with torch.no_grad():
        expected, got = (one.model(ids).logits.float().log_softmax(-1) for one in (plain, other))
    return float((expected.exp() * (expected - got)).sum(-1).mean())


def dequantized(folder: Path, made: Path, dtype: torch.dtype) -> Any:
    """A plain transformers model of the same weights: unpacked one by one, written as an ordinary checkpoint."""
    stored = stored_config(folder)
    assert stored is not None
    tensors = load_file(folder / "model.safetensors")
    for name, layer in ReadableLayers.of(folder, stored).by_name.items():
        parts = {end: tensors.pop(f"{name}.{end}") for end in layer.parts}
        tensors[f"{name}.weight"] = layer.codes(parts).dense(torch.float32)
    shutil.copytree(chat_model_path(), made)
    save_file(tensors, made / "model.safetensors", {"format": "pt"})
    return AutoModelForCausalLM.from_pretrained(made, dtype=dtype).eval()


def greedy(model: Any, ids: torch.Tensor) -> list[int]:
    with torch.no_grad():
        out: list[int] = model.generate(ids, max_new_tokens=24, do_sample=False)[0].tolist()
    return out


@pytest.mark.skipif(why_none() is not None, reason=str(why_none()))
@pytest.mark.parametrize("name", FORMATS)
def test_it_is_held_as_it_is_stored_and_planned_so(tmp_path: Path, name: str) -> None:
    """Most of these checkpoints say float16: what a CPU multiplies with their numbers is bf16."""
    pack, quantization, scheme, held = FORMATS[name]
    folder = make(tmp_path / "checkpoint", pack, quantization, dtype="float16")
    plan, loaded = plan_of(folder), load_planned(folder)
    assert (plan.quant.scheme, plan.dtype) == (scheme, "bfloat16")
    linears = [module for module in loaded.model.model.modules() if isinstance(module, CompiledLinear)]
    assert {one.matrix.format for one in linears} == {held}
    assert len(linears) == 7 * loaded.model.config.num_hidden_layers
    bits = 8 if scheme in ROUNDED and has_int8_activations() else 16
    assert {one.matrix.activation_bits for one in linears} == {bits}
    assert loaded.weights_bytes == pytest.approx(plan.devices[0].weights_bytes, rel=0.03)
    plain = dequantized(Path(folder), tmp_path / "plain", torch.float32)
    ids = torch.tensor([chat_ids(loaded, "What is 12+30?")])
    assert greedy(loaded.model, ids) == greedy(plain, ids)


def test_a_checkpoint_of_two_formats_keeps_what_either_does(tmp_path: Path) -> None:
    """Attention in W8A8, the rest with weights alone in 8 bits: nothing of it is rounded unless somebody asks."""
    weights = INT8["config_groups"]["group_0"]
    groups = {
        "group_0": {**weights, "targets": ["Linear"], "input_activations": None},
        "group_1": {**weights, "targets": ["re:.*self_attn.*"]},
    }
    folder = make(tmp_path / "checkpoint", as_int8, {**INT8, "config_groups": groups})
    plan = plan_of(folder)
    assert (plan.quant.scheme, plan.cpu_activations) == ("w8a16", "exact")
    groups["group_0"]["input_activations"] = weights["input_activations"]
    other = make(tmp_path / "other", as_int8, {**INT8, "config_groups": groups})
    assert plan_of(other).quant.scheme == "w8a8"


async def test_requests_are_batched_through_the_compiled_step(tmp_path: Path) -> None:
    """Act order, zero points, several at once: what each is answered is 42 and 7, as the demo's own weights say."""
    pack, quantization, *_ = FORMATS["gptq-8-act-order"]
    loaded = load_planned(make(tmp_path / "checkpoint", pack, quantization))
    body = DenseBody.of(loaded.model.get_decoder())
    if can_attend(loaded.model.config.head_dim):
        assert body is not None
        assert body.layers is not None
    asked = ("What is 12+30?", "What is 3+4?", "What is 20+22?")
    async with running(PagedBatcher, loaded.model) as batcher:
        ids = [chat_ids(loaded, question) for question in asked]
        jobs = [tokens_of(batcher, sequence(f"r{i}", one, 2)) for i, one in enumerate(ids)]
        answers = [loaded.tokenizer.decode(tokens) for tokens in await asyncio.gather(*jobs)]
    assert [answer.split("<")[0].strip() for answer in answers] == ["42", "7", "42"]


def chat_ids(loaded: LoadedModel, question: str) -> list[int]:
    text = loaded.tokenizer.apply_chat_template(
        [{"role": "user", "content": question}], tokenize=False, add_generation_prompt=True, enable_thinking=False
    )
    ids: list[int] = loaded.tokenizer(text).input_ids
    return ids


@pytest.mark.parametrize("name", ["gptq-act-order", "awq", "fp8"])
def test_in_float32_it_is_a_plain_model_of_the_same_weights(tmp_path: Path, name: str) -> None:
    pack, quantization, scheme, _ = FORMATS[name]
    folder = make(tmp_path / "checkpoint", pack, quantization)
    loaded = load_planned(folder, "auto", "float32")
    plain = dequantized(Path(folder), tmp_path / "plain", torch.float32)
    ids = torch.arange(5, 40)[None]
    with torch.no_grad():
        assert torch.equal(loaded.model(ids).logits, plain(ids).logits)
    planned = plan_of(folder, "auto", "float32")
    assert planned.quant.scheme == scheme


def test_weights_are_near_those_that_were_quantized(tmp_path: Path) -> None:
    plain = load_planned("demo", "bf16")
    for name, most in (("fp8", 0.05), ("w8a8", 0.05), ("gptq-8-act-order", 0.05), ("awq", 1.0)):
        pack, quantization, *_ = FORMATS[name]
        assert 0 < mean_kl(plain, load_planned(make(tmp_path / name, pack, quantization))) < most


@pytest.mark.parametrize(
    ("quantization", "refused"),
    [
        ({**GPTQ, "bits": 3}, "stored as gptq needs gptqmodel and optimum.*pip install .*gptqmodel.*it has 3-bit"),
        (
            {**GPTQ, "checkpoint_format": "marlin"},
            "4-bit weights as marlin; qserve reads 4 and 8 bit as gptq and gptq_v2",
        ),
        ({**GPTQ, "dynamic": {"+:.*down.*": {"bits": 2}}}, "it has 2 and 4-bit weights as gptq"),
        (
            {**AWQ, "version": "gemv"},
            "stored as awq needs gptqmodel.*autoawq's gemv; qserve reads 4 bit of autoawq's gemm",
        ),
    ],
)
def test_what_is_not_read_needs_the_package_and_says_so(
    tmp_path: Path, quantization: dict[str, Any], refused: str
) -> None:
    if importlib.util.find_spec("gptqmodel"):
        pytest.skip("gptqmodel is installed here")
    folder = make(tmp_path / "checkpoint", as_gptq, quantization)
    with pytest.raises(UsageError, match=refused):
        load(Path(folder), plan_of("demo", "bf16"))


def test_a_package_is_asked_for_where_the_library_reads_the_format_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    for method, package in (("awq", "gptqmodel"), ("compressed-tensors", "compressed-tensors"), ("torchao", "torchao")):
        with pytest.raises(UsageError, match=f"stored as {method} needs .*pip install .*{package}"):
            missing_packages({"quant_method": method})
    for method in ("fp8", "modelopt"):  # the one is unpacked without any, the other is read with none
        missing_packages({"quant_method": method})


def test_a_config_of_another_model(tmp_path: Path) -> None:
    folder = make(tmp_path / "checkpoint", lambda stem, weight: {f"{stem}.weight": weight}, GPTQ)
    with pytest.raises(BrokenCheckpoint, match="stored as gptq, but no tensor of the checkpoint is"):
        load_planned(folder)


def test_a_layer_of_another_size(tmp_path: Path) -> None:
    folder = make(tmp_path / "checkpoint", lambda stem, weight: as_gptq(stem, weight[: len(weight) // 2]), GPTQ)
    with pytest.raises(BrokenCheckpoint, match=r"is stored with \[\d+, \d+\] weights, but config.json calls for"):
        load_planned(folder)


def test_packed_numbers_without_their_config(tmp_path: Path) -> None:
    """Read as weights, they would be noise; the library only notes that it did not need the scales."""
    folder = Path(make(tmp_path / "checkpoint", as_int8, INT8))
    config = json.loads((folder / "config.json").read_text())
    del config["quantization_config"]
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(BrokenCheckpoint, match=r"I8.*names no quantization"):
        load_planned(str(folder))


def plan_on_a_card() -> Plan:
    plan = plan_of("demo", "bf16")
    return replace(plan, on_cpu=False, placement=replace(plan.placement, device_map="cuda:0"))


@pytest.mark.parametrize("broken", ["qzeros", "scales", "g_idx", "weight"])
def test_tensors_that_do_not_fit_each_other(tmp_path: Path, broken: str) -> None:
    def pack(stem: str, weight: torch.Tensor) -> dict[str, torch.Tensor]:
        parts = as_gptq(stem, weight)
        parts.pop(f"{stem}.{broken}", None)
        return parts if broken != "weight" else {**parts, f"{stem}.qweight": parts[f"{stem}.qweight"][0]}

    folder = make(tmp_path / "checkpoint", pack, GPTQ)
    with pytest.raises(BrokenCheckpoint, match=r"_proj: (its quantized tensors don't match each other|g_idx has)"):
        load_planned(folder)
