"""Weights behind each other in one memory: what is computed, what it takes, and which layers stay apart."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import torch
from torch import nn

from bench.step_counts import hold
from qserve.engines.transformers.worker.batching import paged
from qserve.engines.transformers.worker.batching.paged import PagedBatcher
from qserve.engines.transformers.worker.decoding.fused import GATE_UP, QKV, fuse_products, products
from qserve.model.layer_stream import LayerStream
from qserve.model.measured_weights import weights_by_kind, weights_bytes
from tests.tiny.engine.families import build
from tests.tiny.engine.running import generated, prompts, running, sequence, tokens_of


def storages(model: nn.Module) -> set[int]:
    return {tensor.untyped_storage().data_ptr() for tensor in (*model.parameters(), *model.buffers())}


@pytest.mark.parametrize(("family", "held"), [("qwen3", ""), ("qwen2", ""), ("qwen3", "int8"), ("qwen2", "int8")])
def test_they_are_what_they_were(family: str, held: str) -> None:
    """By the layers one by one, too, which the library goes on to call; in no more memory than before."""
    if held:
        pytest.importorskip("bitsandbytes")
    torch.manual_seed(0)
    model = build(family)
    if held:
        hold(model.get_decoder(), held)
    layer = model.get_decoder().layers[0]
    states = torch.randn(3, model.config.hidden_size, dtype=model.dtype)
    cases: list[tuple[Any, tuple[str, ...]]] = [(layer.self_attn, QKV), (layer.mlp, GATE_UP)]
    before = [[getattr(module, name)(states) for name in names] for module, names in cases]
    memory, kinds, names_before = weights_bytes(model), weights_by_kind(model), set(model.state_dict())
    num_storages = len(storages(model))
    num_layers = len(model.get_decoder().layers)
    assert fuse_products(model) == 3 * num_layers
    num_parts = 1 + bool(held) + (family == "qwen2")  # the weight, its scales, the bias
    assert len(storages(model)) < num_storages - 2 * num_layers * (num_parts - 1)
    for (module, names), meant in zip(cases, before, strict=True):
        for said in ([getattr(module, name)(states) for name in names], products(module, names, states)):
            for one, other in zip(said, meant, strict=True):
                assert torch.allclose(one.float(), other.float(), atol=1e-5, rtol=1e-2)
    assert (weights_bytes(model), weights_by_kind(model)) == (memory, kinds)
    assert set(model.state_dict()) == names_before


@pytest.mark.parametrize("held", ["nf4", "fp4"])
def test_four_bits_stay_apart(held: str) -> None:
    """Their scales have an offset for each weight."""
    pytest.importorskip("bitsandbytes")
    model = build("qwen3")
    hold(model.get_decoder(), held)
    assert fuse_products(model) == 0


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


async def test_answers_are_those_of_plain_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paged, "compile_steps", lambda model, cache: None)
    monkeypatch.setattr(paged, "decodes_in_runs", lambda *_: True)
    monkeypatch.setattr(paged, "fuses_products", lambda model: True)
    model, reference = build("qwen3"), build("qwen3")
    asked = prompts(3, 20)
    async with running(PagedBatcher, model) as batcher:
        said = await asyncio.gather(*(tokens_of(batcher, sequence(f"r{i}", p, 20)) for i, p in enumerate(asked)))
    assert said == [generated(reference, prompt, 20) for prompt in asked]
    assert "fused_products" in model.get_decoder().layers[0].mlp.__dict__
