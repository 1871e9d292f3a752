"""What an engine holds of a quantized checkpoint, where that is not what lies in its files."""

from __future__ import annotations

import pytest

from qserve.core.tensors import Tensor
from qserve.errors import UsageError
from qserve.planner import PlanRequest, make_plan, plan_request
from qserve.planner.memory.resident_weights import with_single_scales
from qserve.units import GIB
from tests.unit.planner.test_make_plan import checkpoint_of, machine, plan_of

NF4 = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}
STORED = checkpoint_of("Qwen/Qwen2.5-7B-Instruct", quantization_config={**NF4, "bnb_4bit_use_double_quant": True})

LINEARS_8B = 36 * (4096 * (4096 + 2 * 1024) + 4096 * 4096 + 3 * 4096 * 12288)
REST_8B = 2 * (2 * 151936 * 4096)  # embeddings and lm_head, in bf16


@pytest.mark.parametrize(("release", "bytes_a_weight"), [("0.9.1", 0.5 + 1 / 64 + 4 / 64 / 256), ("0.9.2", 0.5625)])
def test_vllm_undoes_the_double_quantization_of_nf4(release: str, bytes_a_weight: float) -> None:
    """vllm#19742: 0.3 GiB of Qwen3-8B. What a segment of the allocator keeps for itself is below 1 %."""
    plan = plan_of("Qwen/Qwen3-8B", "rtx-4090", quant="bnb-nf4", engine_version=release)
    assert plan.devices[0].weights_bytes == pytest.approx(LINEARS_8B * bytes_a_weight + REST_8B, rel=0.01)


def test_stored_scales_are_held_in_fp32_without_their_own() -> None:
    packed = Tensor("model.layers.0.mlp.up_proj.weight", "U8", (32, 1), 32)
    absmax = Tensor("model.layers.0.mlp.up_proj.weight.absmax", "U8", (1024,), 1024)
    nested = Tensor("model.layers.0.mlp.up_proj.weight.nested_absmax", "F32", (4,), 16)
    single = Tensor("model.layers.1.mlp.up_proj.weight.absmax", "F32", (1024,), 4096)
    held = with_single_scales((packed, absmax, nested, single))
    assert [tensor.nbytes for tensor in held] == [32, 4096, 4096]
    assert held[1].dtype == "F32"


def test_a_stored_nf4_checkpoint_is_held_so_too() -> None:
    """m0441 has 5.20 GiB of Qwen2.5-7B in nf4 on vLLM 0.7; since then 6.5 G weights have 0.28 GiB of scales more.

    Larger tensors leave more of their segments, 0.07 GiB of 112 of them.
    """
    old, new = (
        make_plan(STORED, machine("rtx-4090"), PlanRequest(engine_version=release)).devices[0].weights_bytes
        for release in ("0.7.3", "0.32.0")
    )
    assert old == pytest.approx(5.20 * GIB, rel=0.01)
    assert new - old == pytest.approx(0.32 * GIB, abs=0.05 * GIB)


def test_a_stored_nf4_checkpoint_is_not_split_over_ranks() -> None:
    """vLLM's loader refuses it and names pipeline parallelism: a part of a weight does not know its scales."""
    with pytest.raises(UsageError, match=r"bitsandbytes made them whole.*divides over 1$"):
        make_plan(STORED, machine("rtx-3060:2"), plan_request(tensor_parallel_size=2))
    plan = make_plan(STORED, machine("rtx-2060:2"), PlanRequest(max_model_len=2048))
    assert (plan.placement.tensor_parallel_size, plan.placement.pipeline_parallel_size) == (1, 2)


def test_nf4_made_while_loading_is_split() -> None:
    plan = plan_of("Qwen/Qwen2.5-7B-Instruct", "rtx-3060:2", quant="bnb-nf4", tensor_parallel_size=2)
    assert plan.quant.in_flight
    assert plan.placement.tensor_parallel_size == 2


def test_experts_are_unpacked_for_a_step_and_once_more_for_the_graphs() -> None:
    """128 experts of 3 × 2048 × 768 in bf16 are 1.125 GiB, in the profile's peak and in the pool of the graphs."""
    asked = {"quant": "bnb-nf4", "max_num_seqs": 8, "max_model_len": 4096}
    experts = 2 * 128 * 3 * 2048 * 768
    graphs = plan_of("Qwen/Qwen3-30B-A3B", "rtx-5090", **asked).devices[0]
    eager = plan_of("Qwen/Qwen3-30B-A3B", "rtx-5090", enforce_eager=True, **asked).devices[0]
    calibrated = plan_of("Qwen/Qwen3-30B-A3B", "rtx-5090", **{**asked, "quant": "gptq-int4"}).devices[0]
    assert experts < graphs.activations_bytes < experts + 0.2 * GIB
    assert experts < eager.activations_bytes
    assert eager.cuda_graphs_bytes == 0
    assert graphs.cuda_graphs_bytes - calibrated.cuda_graphs_bytes == experts
    assert calibrated.activations_bytes < experts
    assert any("unpacked from 4 bit" in term.formula for term in graphs.terms if term.name == "CUDA graphs")


def test_two_ranks_unpack_half_the_experts_each() -> None:
    asked = {"max_num_seqs": 8, "max_model_len": 4096}
    one, two = (
        plan_of("Qwen/Qwen3-30B-A3B", gpu, quant="bnb-nf4", **split).devices[0].cuda_graphs_bytes
        - plan_of("Qwen/Qwen3-30B-A3B", gpu, quant="gptq-int4", **split).devices[0].cuda_graphs_bytes
        for gpu, split in (
            ("rtx-5090", {**asked, "tensor_parallel_size": 1}),
            ("rtx-5090:2", {**asked, "tensor_parallel_size": 2}),
        )
    )
    assert one == 2 * two == 2 * 128 * 3 * 2048 * 768


def test_one_matrix_of_a_dense_layer_is_unpacked_at_a_time() -> None:
    """Beside a step that samples little: 4096 × 12288 in bf16 are 96 MiB."""
    asked = {"max_num_seqs": 4, "max_model_len": 4096, "warm_compile_cache": True}
    packed = plan_of("Qwen/Qwen3-8B", "rtx-4090", quant="bnb-nf4", **asked).devices[0].activations_bytes
    whole = plan_of("Qwen/Qwen3-8B", "rtx-4090", quant="bf16", **asked).devices[0].activations_bytes
    assert packed - whole == 2 * 4096 * 12288
