"""Loaded weights against logs, to a hundredth of a GiB: sharding, fusing, casting, the allocator's blocks."""

from __future__ import annotations

from dataclasses import replace

import pytest

from qserve.core.dimensions import tensors_of
from qserve.core.model_spec import ModelSpec
from qserve.core.quantization.stored import CheckpointQuantization
from qserve.core.tensors import Tensor
from qserve.hub.bundled import bundled_config
from qserve.planner.memory.allocator import allocated_bytes
from qserve.planner.memory.rope import rope_cache_bytes
from qserve.planner.memory.weights import Loading, rank_weights
from qserve.units import GIB, MIB

VLLM = Loading("bfloat16", fuse=True, fuse_experts=True, round_blocks=True)


def spec_of(model: str) -> ModelSpec:
    return ModelSpec.from_config(bundled_config(model) or {}, model)


def loaded_gib(spec: ModelSpec, loading: Loading) -> float:
    return (rank_weights(spec, tensors_of(spec), loading) + rope_cache_bytes(spec, "bfloat16")) / GIB


@pytest.mark.parametrize(
    ("model", "ranks", "logged"),
    [
        ("Qwen/Qwen2.5-7B", 1, 14.25),
        ("Qwen/Qwen2.5-7B", 2, 7.12),
        ("Qwen/Qwen2.5-72B", 2, 67.80),
        ("Qwen/Qwen2.5-14B", 1, 27.57),
        ("Qwen/Qwen2.5-32B", 1, 61.0374),
        ("Qwen/Qwen3-0.6B", 1, 1.12),
        ("Qwen/Qwen3-4B-Thinking-2507", 1, 7.61),
        ("Qwen/Qwen3-14B", 1, 27.52),
        ("Qwen/Qwen3-30B-A3B", 1, 56.88),
        ("Qwen/Qwen3-30B-A3B", 4, 14.25),
        ("Qwen/Qwen1.5-MoE-A2.7B", 1, 26.67),
        ("Qwen/Qwen3.5-4B", 1, 8.61),
        ("Qwen/Qwen3.5-9B", 1, 17.66),
        ("Qwen/Qwen3-Next-80B-A3B-Instruct", 2, 74.2812),
    ],
)
def test_bf16_weights_as_vllm_logs_them(model: str, ranks: int, logged: float) -> None:
    assert loaded_gib(spec_of(model), replace(VLLM, tensor_parallel_size=ranks)) == pytest.approx(logged, abs=0.011)


@pytest.mark.parametrize(
    ("model", "quantization", "split_mib", "logged"),
    [
        ("Qwen/Qwen3-8B", CheckpointQuantization("awq", 4, 128), None, 5.7088),
        ("Qwen/Qwen2.5-7B", CheckpointQuantization("awq", 4, 128), None, 5.20),
        ("Qwen/Qwen3-14B", CheckpointQuantization("awq", 4, 128), 20, 9.44),
        ("Qwen/Qwen2.5-7B", CheckpointQuantization("w8a8", 8), None, 8.14),
    ],
)
def test_packed_weights(model: str, quantization: CheckpointQuantization, split_mib: int | None, logged: float) -> None:
    spec = replace(spec_of(model), quantization=quantization)
    loading = replace(VLLM, max_split_bytes=split_mib * MIB if split_mib else None)
    assert loaded_gib(spec, loading) == pytest.approx(logged, rel=0.005)


@pytest.mark.parametrize(
    ("mib", "counted"), [(0.5, 0.5), (9.5, 9.5), (10, 10), (31.5, 32), (24.5, 24.5), (129.5, 130), (259, 260)]
)
def test_allocator_counts_a_remainder_of_up_to_one_mib(mib: float, counted: float) -> None:
    assert allocated_bytes(int(mib * MIB)) == int(counted * MIB)


def test_allocator_never_splits_large_blocks_when_told_so() -> None:
    assert allocated_bytes(int(24.5 * MIB), 20 * MIB) == 26 * MIB


def test_quantizing_in_flight_leaves_embeddings_and_head_alone() -> None:
    spec = spec_of("Qwen/Qwen2.5-7B")
    nf4 = Loading("bfloat16", quantization=CheckpointQuantization("bnb-nf4", 4, 64, double_quant=True))
    ends = 2 * spec.vocab_size * spec.hidden_size * 2
    body = rank_weights(spec, tensors_of(spec), nf4) - ends
    linear = sum(t.num_elements for t in tensors_of(spec) if t.role == "linear" and len(t.shape) == 2)
    assert body == pytest.approx(linear * 0.516, rel=0.001)


def test_an_fp32_checkpoint_is_cast_on_loading() -> None:
    spec = spec_of("Qwen/Qwen3-0.6B")
    stored = [Tensor("model.layers.0.mlp.up_proj.weight", "F32", (4, 8), 128)]
    assert rank_weights(spec, stored, Loading("bfloat16")) == 64


def test_scales_keep_their_dtype() -> None:
    spec = spec_of("Qwen/Qwen3-0.6B")
    stored = [Tensor("model.layers.0.mlp.up_proj.weight_scale_inv", "F32", (4, 8), 128)]
    assert rank_weights(spec, stored, Loading("bfloat16")) == 128


def test_a_tied_head_is_not_counted_twice() -> None:
    spec = spec_of("Qwen/Qwen3-0.6B")
    head = Tensor("lm_head.weight", "BF16", (spec.vocab_size, spec.hidden_size), spec.vocab_size * spec.hidden_size * 2)
    assert rank_weights(spec, [head], Loading("bfloat16")) == 0
    assert rank_weights(spec, [head], Loading("bfloat16", untie_lm_head=True)) == head.nbytes


def test_mtp_and_vision_are_loaded_only_when_used() -> None:
    spec = spec_of("Qwen/Qwen3.5-4B")
    plain = rank_weights(spec, tensors_of(spec), Loading("bfloat16", with_encoders=False))
    with_both = rank_weights(spec, tensors_of(spec), Loading("bfloat16", with_mtp=True))
    assert with_both - plain == 2 * (4_659_865_088 - 4_205_751_296)
