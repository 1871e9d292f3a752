"""How many ranks a model splits into: quantized blocks and groups that no rank may get a part of."""

from __future__ import annotations

from dataclasses import replace

import pytest

from qserve.core.quantization.stored import CheckpointQuantization
from qserve.engines.vllm.plan.layouts import why_not_divisible
from qserve.errors import UsageError
from qserve.units import GIB
from tests.unit.planner.test_make_plan import plan_of
from tests.unit.planner.test_weights import spec_of

_FP8_BLOCKS = CheckpointQuantization("fp8", 8, block=128, symmetric=True)


def test_blocks_of_experts_are_cut_from_0_32_on_and_by_no_release_before() -> None:
    """vllm#17569: 768 expert columns over 4 ranks are 192 each, one FP8 block and a half."""
    spec = replace(spec_of("Qwen/Qwen3-30B-A3B"), quantization=_FP8_BLOCKS)
    assert why_not_divisible(spec, 2, "0.10.0") is None
    assert why_not_divisible(spec, 4, "0.32.0") is None
    assert why_not_divisible(spec, 4, "0.10.0") == "768 expert columns over 4 ranks cut FP8 blocks of 128"
    assert why_not_divisible(replace(spec, quantization=None), 4, "0.10.0") is None


def test_a_finer_block_has_32_columns_or_more() -> None:
    spec = replace(spec_of("Qwen/Qwen3-30B-A3B"), quantization=_FP8_BLOCKS)
    assert spec.moe is not None
    narrow = replace(spec, moe=replace(spec.moe, moe_intermediate_size=640))
    assert "cut FP8 blocks" in str(why_not_divisible(narrow, 8, "0.32.0"))  # 80 columns each: gcd(128, 80) = 16


def test_blocks_of_a_dense_mlp_are_cut_by_no_release() -> None:
    spec = replace(spec_of("Qwen/Qwen3-8B"), quantization=_FP8_BLOCKS)
    assert why_not_divisible(spec, 8) is None  # 12288 / 8 = 12 blocks
    odd = replace(spec, intermediate_size=12288 + 128)
    assert why_not_divisible(odd, 2) == "12416 MLP columns over 2 ranks cut FP8 blocks of 128"


def test_the_checkpoint_that_would_be_loaded_is_named_with_the_sizes_that_divide_it() -> None:
    with pytest.raises(UsageError, match=r"cut FP8 blocks of 128; Qwen/Qwen3-30B-A3B-FP8 divides over 1, 2"):
        plan_of("Qwen/Qwen3-30B-A3B", "h100:4", quant="fp8", tensor_parallel_size=4, engine_version="0.10.0")


@pytest.mark.parametrize("version", ["0.10.0", "0.32.0"])
def test_whole_experts_are_not_cut(version: str) -> None:
    """Qwen3-235B-A22B-FP8 runs on 8 ranks of 8 × H100 with vLLM 0.10.0 and --enable-expert-parallel."""
    sizes = {"quant": "fp8", "tensor_parallel_size": 8, "engine_version": version}
    plan = plan_of("Qwen/Qwen3-235B-A22B", "h100-80gb:8", enable_expert_parallel=True, **sizes)
    assert plan.fits and plan.placement.tensor_parallel_size == 8
    spec = replace(spec_of("Qwen/Qwen3-235B-A22B"), quantization=_FP8_BLOCKS)
    assert why_not_divisible(spec, 8, version, whole_experts=True) is None
    assert (why_not_divisible(spec, 8, version) is None) is (version == "0.32.0")


def test_the_error_names_the_flag_that_keeps_experts_whole() -> None:
    with pytest.raises(UsageError, match=r"with --enable-expert-parallel, which keeps experts whole, also over 8"):
        plan_of("Qwen/Qwen3-235B-A22B", "h100-80gb:8", quant="fp8", tensor_parallel_size=8, engine_version="0.10.0")


def test_auto_passes_over_weights_that_the_ranks_can_not_share() -> None:
    """Four L4 have room for 30B in FP8 only, and two of them share its blocks."""
    plan = plan_of("Qwen/Qwen3-30B-A3B", "l4:4", quant="fp8", engine_version="0.10.0")
    assert plan.placement.tensor_parallel_size == 2


@pytest.mark.parametrize("model", ["Qwen/Qwen2.5-72B-Instruct", "Qwen/Qwen2.5-72B-Instruct-AWQ"])
def test_padded_siblings_of_72b_split_over_four_ranks(model: str) -> None:
    """29568 columns over 4 ranks cut groups of 128, so the files have 29696: 19.40 GiB on each of two (v064)."""
    quant = "auto" if model.endswith("AWQ") else "awq"
    four = plan_of(model, "rtx-3090:4", quant=quant)
    assert four.placement.tensor_parallel_size == 4
    two = plan_of(model, "rtx-3090:2", quant=quant, engine_version="0.7.2")
    assert two.placement.tensor_parallel_size == 2
    assert two.devices[0].weights_bytes == pytest.approx(19.3952 * GIB, rel=0.002)


def test_72b_itself_is_not_padded() -> None:
    assert spec_of("Qwen/Qwen2.5-72B-Instruct").intermediate_size == 29568


def test_attention_gets_whole_groups_too() -> None:
    """Qwen2.5-0.5B: 14 heads of 64 are 896 columns, 448 for each of two ranks and half a group of 128."""
    spec = replace(spec_of("Qwen/Qwen2.5-0.5B-Instruct"), quantization=CheckpointQuantization("awq", 4, group_size=128))
    assert why_not_divisible(spec, 2) == "896 attention columns over 2 ranks cut quantization groups of 128"
    assert why_not_divisible(replace(spec, quantization=None), 2) is None


def test_only_modules_that_are_quantized_have_scales_to_cut() -> None:
    """512 columns of Qwen3.6-35B's shared expert over 8 ranks: half a block, unless the checkpoint leaves it alone."""
    spec = replace(spec_of("Qwen/Qwen3.6-35B-A3B"), quantization=_FP8_BLOCKS)
    assert why_not_divisible(spec, 8) == "512 shared expert's columns over 8 ranks cut FP8 blocks of 128"
    skipped = replace(_FP8_BLOCKS, skipped=("re:.*shared_expert.*",))
    assert why_not_divisible(replace(spec, quantization=skipped), 8) is None
