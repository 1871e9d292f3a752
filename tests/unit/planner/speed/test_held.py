"""Modules that a packed checkpoint leaves in 16 bit, or stores otherwise, are read as they are held."""

from __future__ import annotations

import pytest

from qserve.core.model_spec import ModelSpec
from qserve.core.quantization.weight_format import BF16
from qserve.hub.bundled import bundled_config, packed_config
from qserve.planner.speed.terms.formats import weight_format
from qserve.planner.speed.terms.network import RankNetwork, rank_network

FP4, FP8 = weight_format("nvfp4", ("fp8", "fp4")), weight_format("fp8", ("fp8", "fp4"))


def network_of(model: str) -> RankNetwork:
    spec = ModelSpec.from_config(packed_config(model) or bundled_config(model) or {}, model)
    return rank_network(spec, FP4, 1, {"nvfp4": FP4, "fp8": FP8})


def test_all_products_of_a_uniform_checkpoint_have_its_format() -> None:
    network = network_of("nvidia/Qwen3-8B-NVFP4")
    assert {gemm.weights for gemm in network.gemms} == {FP4}
    assert network.lm_head.weights == BF16


def test_inputs_of_linear_attention_in_16_bit_are_read_in_16_bit() -> None:
    network = network_of("Inferact/Qwen3.8-27B-NVFP4")
    projected = next(gemm for gemm in network.gemms if gemm.rows == 10240 + 6144)
    assert (projected.weights, projected.count) == (BF16, 48)


def test_layers_that_are_stored_otherwise_are_told_apart() -> None:
    network = network_of("unsloth/Qwen3.8-27B-NVFP4")
    down = {gemm.weights.name: gemm.count for gemm in network.gemms if gemm.columns == 17408}
    assert down == {FP4.name: 56, FP8.name: 8}
    assert network.lm_head.weights == FP8


@pytest.mark.parametrize(("model", "held"), [("nvidia/Qwen3.5-122B-A10B-NVFP4", BF16), ("Qwen/Qwen3.5-122B-A10B", FP4)])
def test_experts_may_be_all_that_is_packed(model: str, held: object) -> None:
    network = network_of(model)
    assert network.expert_format == FP4
    assert {gemm.weights for gemm in network.gemms if gemm.rows > 512} == {held}
