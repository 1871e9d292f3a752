"""Weights behind each other in one memory: what is computed, what it takes, and which layers stay apart."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from qserve.engines.transformers.kernels import quantized_products
from qserve.engines.transformers.worker.batching import paged
from qserve.engines.transformers.worker.batching.paged import PagedBatcher
from qserve.engines.transformers.worker.decoding import fused
from qserve.engines.transformers.worker.decoding.fused import GATE_UP, QKV, fuse_products, products
from qserve.model.cuda import trial
from qserve.model.cuda.operations import by_meaning
from qserve.model.cuda.products import BY_PIECES, KERNEL, LIBRARY, PRODUCTS
from qserve.model.cuda.samples import Shape
from qserve.model.fp8.products import PRODUCTS as FP8_PRODUCTS
from qserve.model.fp8.products import SCALED
from qserve.model.fp8.trial import Fp8Shape, shapes_ahead
from qserve.model.layer_stream import LayerStream
from qserve.model.measured_weights import weights_by_kind, weights_bytes
from qserve.model.trials.verdicts import TrialRefused
from tests.tiny.engine.families import build
from tests.tiny.engine.held_weights import BLOCKS, hold_as
from tests.tiny.engine.running import generated, prompts, running, sequence, tokens_of


@pytest.fixture(autouse=True)
def _inference() -> Iterator[None]:
    with torch.no_grad():
        yield


def storages(model: nn.Module) -> set[int]:
    return {tensor.untyped_storage().data_ptr() for tensor in (*model.parameters(), *model.buffers())}


def layers_of(module: Any, names: tuple[str, ...]) -> list[Any]:
    return [getattr(module, name) for name in names]


HELD = ["", "int8", "nf4", "fp4", "nf4-plain", "fp8-rows", "fp8-64x128"]
NUM_TENSORS = {"nf4": 4, "fp4": 4, "": 1}  # codes, scales, their scales and offsets; of others codes and scales


@pytest.mark.parametrize("family", ["qwen3", "qwen2"])
@pytest.mark.parametrize("held", HELD)
def test_they_are_what_they_were(family: str, held: str) -> None:
    """By the layers one by one, too, which the library goes on to call; in no more memory than before."""
    if "4" in held:
        pytest.importorskip("bitsandbytes")
    model = hold_as(build(family, hidden=256, inner=128), held)
    layer = model.get_decoder().layers[0]
    states = torch.randn(3, model.config.hidden_size, dtype=model.dtype)
    cases: list[tuple[Any, tuple[str, ...]]] = [(layer.self_attn, QKV), (layer.mlp, GATE_UP)]
    before = [[one(states) for one in layers_of(*case)] for case in cases]
    memory, kinds, names_before = weights_bytes(model), weights_by_kind(model), set(model.state_dict())
    num_storages = len(storages(model))
    num_layers = len(model.get_decoder().layers)
    assert fuse_products(model) == 3 * num_layers
    saved = 3 * NUM_TENSORS.get(held, 2) + 2 * (family == "qwen2")  # biases of q, k and v
    assert len(storages(model)) == num_storages - saved * num_layers
    for case, meant in zip(cases, before, strict=True):
        for said in ([one(states) for one in layers_of(*case)], products(*case, states)):
            for one, other in zip(said, meant, strict=True):
                assert torch.allclose(one.float(), other.float(), atol=1e-5, rtol=1e-2)
    assert (weights_bytes(model), weights_by_kind(model)) == (memory, kinds)
    assert set(model.state_dict()) == names_before


@pytest.mark.parametrize("held", ["nf4", "fp4"])
@pytest.mark.parametrize("name", [LIBRARY, BY_PIECES])
def test_products_of_4_bits_know_each_part_s_offset(held: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that prompts and few rows take beside Triton's kernel; pieces begin and end within a part."""
    pytest.importorskip("bitsandbytes")
    monkeypatch.setattr(quantized_products, "SCRATCH_BYTES", 50 * 256 * 4)
    model = hold_as(build("qwen2", num_layers=1, hidden=256, inner=128), held)
    attention = model.get_decoder().layers[0].self_attn
    parts = [(one.held, one.bias) for one in layers_of(attention, QKV)]
    assert len({float(weight.nested[2]) for weight, _ in parts}) == 3
    rows = torch.randn(7, 256)
    meant = [PRODUCTS[name](rows, *part) for part in parts]
    numbers = [torch.empty(weight.outputs, 256) for weight, _ in parts]
    for (weight, _), out in zip(parts, numbers, strict=True):
        weight.unpack(0, out)
    assert fuse_products(model) == 3
    whole = attention.fused_products.product
    assert whole.held.part_rows == (128, 64, 64)
    for start, end in ((0, 256), (100, 150), (127, 193), (192, 256)):
        piece = torch.empty(end - start, 256)
        whole.held.unpack(start, piece)
        assert torch.equal(piece, torch.cat(numbers)[start:end])
    said = PRODUCTS[name](rows, whole.held, whole.bias)
    assert torch.allclose(said, torch.cat(meant, dim=-1), atol=1e-5)
    assert torch.equal(said, torch.cat(meant, dim=-1)) or name == BY_PIECES  # whose matrices have other sizes


def test_torch_s_product_in_fp8_says_of_rows_what_it_said() -> None:
    model = hold_as(build("qwen2", num_layers=1, hidden=256, inner=128), "fp8-rows")
    mlp, rows = model.get_decoder().layers[0].mlp, torch.randn(70, 256).bfloat16()
    meant = [FP8_PRODUCTS[SCALED](rows, one.held, None) for one in layers_of(mlp, GATE_UP)]
    assert fuse_products(model) == 3
    assert torch.equal(FP8_PRODUCTS[SCALED](rows, mlp.fused_products.product.weight, None), torch.cat(meant, dim=-1))


@pytest.mark.parametrize(
    ("held", "sizes", "num"),
    [
        ("nf4", {"hidden": 192, "inner": 256}, 1),  # 192 rows of k: one block of scales and a half
        ("nf4", {}, 0),
        ("nf4-plain", {}, 3),
        ("fp8-rows", {}, 3),
        ("fp8-64x128", {"hidden": 256}, 2),  # 96 rows of gate
        ("fp8-128x128", {"hidden": 256, "inner": 128}, 1),  # 64 rows of k
        ("fp8-whole", {"hidden": 256}, 1),  # q has more rows than k
    ],
)
def test_scales_that_can_t_lie_behind_each_other_stay_apart(
    held: str, sizes: dict[str, int], num: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And all weights that can are told before there are any."""
    if "4" in held:
        pytest.importorskip("bitsandbytes")
    model = build("qwen3", num_layers=1, **sizes)
    together = [layers_of(layer, names) for layer, names in cases_of(model)]
    ahead = shapes_ahead(model, BLOCKS.get(held), together) - shapes_ahead(model, BLOCKS.get(held))
    hold_as(model, held)
    layer = model.get_decoder().layers[0]
    states = torch.randn(3, model.config.hidden_size)
    meant = [one(states) for case in cases_of(model) for one in layers_of(*case)]
    tried: list[Any] = []
    monkeypatch.setattr(fused, "choose_products", lambda layers, dtype: tried.extend(layers))
    monkeypatch.setattr(fused, "choose_for_weights", lambda weights, dtype: tried.extend(weights))
    monkeypatch.setattr(type(model), "device", torch.device("cuda", 0))
    assert fuse_products(model) == num
    assert len(tried) == sum("fused_products" in one.__dict__ for one in (layer.self_attn, layer.mlp)) == (num + 1) // 2
    if held != "fp8-whole" and held in BLOCKS:
        assert {Fp8Shape.of(one) for one in tried} == ahead
    said = [part for case in cases_of(model) for part in products(*case, states)]
    assert all(torch.allclose(one, other, atol=1e-5) for one, other in zip(said, meant, strict=True))


def cases_of(model: Any) -> list[tuple[Any, tuple[str, ...]]]:
    layer = model.get_decoder().layers[0]
    return [(layer.self_attn, QKV), (layer.mlp, GATE_UP)]


@pytest.mark.parametrize("table", ["code", "nested_code"])
def test_codes_that_stand_for_other_numbers_stay_apart(table: str) -> None:
    pytest.importorskip("bitsandbytes")
    model = hold_as(build("qwen3", num_layers=1, hidden=256, inner=128), "nf4")
    attention = model.get_decoder().layers[0].self_attn
    setattr(attention.v_proj, table, 2 * getattr(attention.v_proj, table))
    assert fuse_products(model) == 1


def test_a_trial_of_parts_tells_a_product_that_takes_one_offset_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """By what a process of its own is told of them."""
    pytest.importorskip("bitsandbytes")
    monkeypatch.setattr(trial, "_on_card", lambda call: call() or 1.0)
    part = Shape("nf4", 64, 256, has_bias=True, block=64, is_nested=True)
    whole = Shape.behind_each_other([part, part, part])
    assert whole is not None and whole.part_rows == (64, 64, 64)
    for one in trial.product_trials([whole], torch.float32):
        arguments = json.loads(one.arguments)
        monkeypatch.setitem(PRODUCTS, KERNEL, by_meaning)
        assert trial.try_product("cpu", **arguments) == 1.0
        monkeypatch.setitem(PRODUCTS, KERNEL, lambda rows, weight, bias: by_meaning(rows, of_one(weight), bias))
        if one.name == KERNEL:
            with pytest.raises(TrialRefused, match="wrong by"):
                trial.try_product("cpu", **arguments)


def of_one(weight: Any) -> Any:
    return replace(weight, part_rows=())


_KERNELS = """
import torch
from qserve.engines.transformers.worker.decoding import fused
from qserve.engines.transformers.worker.decoding.fused import GATE_UP, QKV, fuse_products
from qserve.model.cuda import triton_products
from qserve.model.fp8 import triton_product
from qserve.model.fp8.weight import Fp8Weight
from qserve.model.trials.verdicts import TrialRefused
from tests.tiny.engine.families import build
from tests.tiny.engine.held_weights import hold_as
from tests.tiny.engine.held_weights import hold_as


def product(rows, weight, bias):
    by = triton_product if isinstance(weight, Fp8Weight) else triton_products
    return by._product(rows, weight, bias, 132)  # for so many, programs have as many outputs with parts and whole


def check(held, num, dtype):
    model = hold_as(build("qwen2", num_layers=1, hidden=256, inner=64), held)
    layer = model.model.layers[0]
    cases = (layer.self_attn, QKV), (layer.mlp, GATE_UP)
    rows = torch.randn(num, 256).to(dtype)
    parts = [[getattr(module, name) for name in names] for module, names in cases]
    meant = [torch.cat([product(rows, one.held, one.bias) for one in some], dim=-1) for some in parts]
    assert fuse_products(model) == 3
    for (module, _), one in zip(cases, meant, strict=True):
        whole = module.__dict__["fused_products"].product
        weight = whole.weight if isinstance(getattr(whole, "weight", None), Fp8Weight) else whole.held
        assert torch.equal(product(rows, weight, whole.bias), one), (held, num, dtype)


check("nf4", 5, torch.float32)
check("fp4", 33, torch.float16)
check("fp8-rows", 1, torch.float16)
check("fp8-64x128", 1, torch.float32)
check("fp8-64x128", 5, torch.float16)
"""


def test_triton_s_kernels_say_of_parts_what_they_said_bit_for_bit() -> None:
    """In Triton's interpreter."""
    pytest.importorskip("triton")
    pytest.importorskip("bitsandbytes")
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, "-c", _KERNELS], env=environment, check=True, timeout=200)


def test_layers_that_are_more_than_a_product_stay_apart() -> None:
    model = build("qwen3")
    layers = model.get_decoder().layers
    layers[0].self_attn.k_proj._hf_hook = object()
    layers[1].mlp.up_proj.register_forward_hook(lambda *_: None)
    assert fuse_products(model) == 3 * len(layers) - 2 - 1
    in_ram = build("qwen3")
    LayerStream(in_ram.get_decoder().layers[1:], torch.device("cpu"))
    assert fuse_products(in_ram) == 3
    wrapped = build("qwen3")
    for layer in wrapped.get_decoder().layers:
        layer.self_attn.q_proj = nn.Sequential(layer.self_attn.q_proj)  # as peft's layers stand around a product
    assert fuse_products(wrapped) == len(wrapped.get_decoder().layers)


@pytest.mark.parametrize("held", ["", "nf4", "fp8-rows"])
async def test_answers_are_those_of_plain_transformers(held: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paged, "compile_steps", lambda model, cache: None)
    monkeypatch.setattr(paged, "decodes_in_runs", lambda *_: True)
    monkeypatch.setattr(paged, "fuses_products", lambda model: True)
    if held == "nf4":
        pytest.importorskip("bitsandbytes")
    model, reference = (hold_as(build("qwen3", hidden=256, inner=128), held) for _ in range(2))
    asked = prompts(3, 20)
    async with running(PagedBatcher, model) as batcher:
        said = await asyncio.gather(*(tokens_of(batcher, sequence(f"r{i}", p, 20)) for i, p in enumerate(asked)))
    assert said == [generated(reference, prompt, 20) for prompt in asked]
    assert "fused_products" in model.get_decoder().layers[0].mlp.__dict__
