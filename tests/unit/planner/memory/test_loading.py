"""Weights as torch's allocator has them after loading: what the logs print to four decimals."""

from __future__ import annotations

import pytest

from qserve.core.dimensions import tensors_of
from qserve.core.model_spec import ModelSpec
from qserve.engines.vllm.plan.versions import VllmVersion
from qserve.hub.bundled import bundled_config
from qserve.planner.memory.rope import rope_cache_bytes
from qserve.planner.memory.weights import Loading, load
from qserve.units import GIB, MIB

AWQ = {"quantization_config": {"quant_method": "awq", "bits": 4, "group_size": 128}}


@pytest.mark.parametrize(
    ("model", "release", "logged"),
    [
        ("Qwen/Qwen3-8B", "0.10.2", 5.7088),
        ("Qwen/Qwen2.5-7B-Instruct", "0.19.0", 5.20),
        ("Qwen/Qwen2.5-7B-Instruct", "0.22.1", 5.29),
        ("Qwen/Qwen2.5-7B-Instruct", "0.26.0", 5.29),
        ("Qwen/Qwen3-14B", "0.28.0", 9.44),
    ],
)
def test_four_bits(model: str, release: str, logged: float) -> None:
    """Remainders of segments are shared by what comes next; from 0.21 on a large tensor keeps its own."""
    spec = ModelSpec.from_config({**(bundled_config(model) or {}), **AWQ}, model)
    limit = 20 * MIB if VllmVersion.parse(release).limits_block_splits else None
    loading = Loading("float16", fuse=True, fuse_experts=True, round_blocks=True, max_split_bytes=limit)
    torch = load(spec, tensors_of(spec), loading, rope_cache_bytes(spec, "float16"))
    assert torch.allocated / GIB == pytest.approx(logged, abs=0.006)


def test_each_call_has_an_allocator_of_its_own() -> None:
    spec = ModelSpec.from_config(bundled_config("Qwen/Qwen3-0.6B") or {}, "Qwen/Qwen3-0.6B")
    loading = Loading("bfloat16", fuse=True, round_blocks=True)
    first, second = load(spec, tensors_of(spec), loading), load(spec, tensors_of(spec), loading)
    first.allocate(64 * MIB)
    assert first.allocated == second.allocated + 64 * MIB
