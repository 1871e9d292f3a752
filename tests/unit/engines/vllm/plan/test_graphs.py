"""CUDA graphs: what of their memory depends on attention's backend, on who sums over the ranks, and on the release."""

from __future__ import annotations

from typing import Any

import pytest

from qserve.engines.vllm.plan import constants
from qserve.engines.vllm.plan.trial import Captures
from qserve.engines.vllm.plan.versions import VllmVersion
from qserve.errors import UsageError
from qserve.planner.plan import Plan
from qserve.planner.term import Term
from qserve.units import GIB, MIB
from tests.unit.planner.test_make_plan import plan_of

FIXED = {"max_model_len": 8192, "gpu_memory_utilization": 0.9}


def graphs_of(model: str, gpu: str, **fixed: Any) -> Term:
    plan: Plan = plan_of(model, gpu, **{**FIXED, **fixed})
    return next(term for term in plan.devices[0].terms if term.name == "CUDA graphs")


def test_hopper_keeps_the_parts_of_a_split_decode_step() -> None:
    """32 parts of 512 tokens of 28 heads of 128 in fp32 are 224 MiB: vLLM 0.19 estimates 0.61 GiB in 102 graphs."""
    asked = {"engine_version": "0.19.0", "max_num_seqs": 1024, "quant": "bf16"}
    found = graphs_of("Qwen/Qwen2.5-7B-Instruct", "h100-sxm", **asked)
    assert found.num_bytes == 224 * MIB + 100 * 28 * constants.GRAPH_BYTES_PER_LAYER_HOPPER.num_bytes
    assert found.num_bytes / GIB == pytest.approx(0.61, abs=0.04)
    assert found.formula.startswith("224 MiB (FlashAttention 3's 32 parts of 512)")
    few = graphs_of("Qwen/Qwen2.5-7B-Instruct", "h100-sxm", **{**asked, "max_num_seqs": 8})
    assert "FlashAttention" not in few.formula


def test_no_log_of_the_second_runner_on_hopper_is_known() -> None:
    """It measures its piecewise graphs, as the first one its captured ones: 0.87 GiB of a 7B, 1.61 of a 72B on two."""
    found = graphs_of("Qwen/Qwen2.5-7B-Instruct", "h100-sxm", engine_version="0.29.0", max_num_seqs=1024, quant="bf16")
    assert found.low_bytes < 0.87 * GIB < found.high_bytes
    assert found.num_bytes / GIB == pytest.approx(0.78, abs=0.02)


@pytest.mark.parametrize(
    ("gpu", "ranks", "captures", "measured"),
    [("l40s:4", 4, 256, 2.73), ("h100-sxm:4", 4, 1024, 1.51), ("h100-sxm:2", 2, 1024, 1.63)],
)
def test_four_cards_over_pcie_sum_by_nccl(gpu: str, ranks: int, captures: int, measured: float) -> None:
    """The 72B of vLLM 0.19: gnosia93/eks-agentic-ai (L40S), llm-d-planner (H100; on four of them Kimi-Dev-72B)."""
    asked = {"engine_version": "0.19.0", "tensor_parallel_size": ranks, "max_num_seqs": captures, "quant": "bf16"}
    found = graphs_of("Qwen/Qwen2.5-72B-Instruct", gpu, **asked)
    assert found.num_bytes / GIB == pytest.approx(measured, rel=0.06)
    assert ("NCCL" in found.formula) == gpu.startswith("l40s")


@pytest.mark.parametrize(
    ("gpu", "by_nccl"),
    [
        ("rtx-3090:2", True),  # no P2P in GeForce drivers
        ("rtx-3060:2", True),  # in no table of links
        ("l40s:2", False),
        ("h100-pcie:4", True),
        ("a100-80gb:4", False),
        ("memory=80GiB,sm=132,cc=9.0,count=4", False),
    ],
)
def test_who_sums_over_the_ranks(gpu: str, by_nccl: bool) -> None:
    ranks = int(gpu[-1])
    found = graphs_of("Qwen/Qwen2.5-7B-Instruct", gpu, tensor_parallel_size=ranks, max_num_seqs=8, max_model_len=2048)
    assert ("NCCL" in found.formula) == by_nccl


@pytest.mark.parametrize(("tokens", "workspace"), [(2048, 394 * MIB), (4096, 394 * MIB), (8192, 768 * MIB)])
def test_flashinfers_workspace_grows_with_the_step(tokens: int, workspace: int) -> None:
    """vllm#52872, 64 layers on an RTX 5090: 0.52 GiB of graphs for steps of 2048 to 4096 tokens, 0.89 for 8192."""
    asked = {"engine_version": "0.27.1", "max_num_batched_tokens": tokens, "max_num_seqs": 16, "quant": "fp8"}
    cached = graphs_of("Qwen/Qwen3.6-27B", "rtx-5090", kv_cache_dtype="fp8", language_model_only=True, **asked)
    plain = graphs_of("Qwen/Qwen3.6-27B", "rtx-5090", kv_cache_dtype="auto", language_model_only=True, **asked)
    assert cached.num_bytes - plain.num_bytes == pytest.approx(workspace - 45 * MIB, abs=8 * MIB)
    older = {**asked, "engine_version": "0.24.0", "kv_cache_dtype": "fp8", "language_model_only": True}
    assert graphs_of("Qwen/Qwen3.6-27B", "rtx-5090", **older).formula.startswith("394 MiB (FlashInfer's workspace)")


def test_hopper_reads_an_fp8_cache_without_flashinfer_and_blackwell_always_with_it() -> None:
    asked = {"max_num_seqs": 16, "quant": "bf16", "engine_version": "0.28.0"}
    assert "FlashInfer" not in graphs_of("Qwen/Qwen3.5-9B", "h100-sxm", kv_cache_dtype="fp8", **asked).formula
    assert "FlashInfer" in graphs_of("Qwen/Qwen3.5-9B", "b200", **asked).formula
    assert "FlashInfer" not in graphs_of("Qwen/Qwen2.5-7B-Instruct", "l40s", **asked).formula


def test_data_centre_blackwell_captures_up_to_1024_tokens() -> None:
    """As a log of 0.31 on a card of compute capability 10.0 lists them: 83 sizes."""
    assert Captures(1024, 8192, largest_by_default=1024).num_graphs == 2 * 83
    newer, older = VllmVersion.parse("0.31.0"), VllmVersion.parse("0.26.0")
    assert [version.largest_capture(True) for version in (newer, older)] == [1024, 512]
    assert newer.largest_capture(False) == 512


def test_experts_take_as_much_as_a_dense_layer_since_0_28() -> None:
    """30B-A3B: 1.24 GiB in 0.19 on an H100, 0.63 in 0.28 on an RTX 5090 (102 and 86 graphs)."""
    asked = {"quant": "gptq-int4", "max_num_seqs": 256, "max_model_len": 2048}
    newer = graphs_of("Qwen/Qwen3-30B-A3B", "rtx-5090", engine_version="0.28.0", **asked)
    assert newer.num_bytes / GIB == pytest.approx(0.63, abs=0.03)
    older = graphs_of("Qwen/Qwen3-30B-A3B", "h100-sxm", engine_version="0.19.0", max_num_seqs=1024, quant="bf16")
    assert older.num_bytes / GIB == pytest.approx(1.24, abs=0.06)


def test_its_band_is_that_of_its_parts() -> None:
    found = graphs_of("Qwen/Qwen2.5-7B-Instruct", "l40s", max_num_seqs=256, engine_version="0.22.0", quant="bf16")
    each = constants.GRAPH_BYTES_PER_LAYER
    assert found.high_bytes - found.num_bytes == pytest.approx(
        84 * 28 * (each.high_bytes - each.num_bytes) + 85 * MIB, abs=MIB
    )
    assert 0 < found.low_bytes < found.num_bytes


def whole_steps_of(gpu: str, **fixed: Any) -> int:
    """Whole decode steps that a plan with two drafts captures, told by the graphs that it counts."""
    asked = {"max_num_seqs": 16, "quant": "bf16", "num_speculative_tokens": 2, **fixed}
    more = int(graphs_of("Qwen/Qwen3.5-9B", gpu, **asked).formula.partition(" more graphs")[0].rpartition(" ")[2])
    fits = VllmVersion.parse(fixed["engine_version"]).captures_decode_sizes
    return more - Captures(16, 8192, 2, piecewise_only=True, fits_decode=fits).num_graphs + 1


@pytest.mark.parametrize(
    ("gpu", "release", "cache", "is_whole"),
    [
        ("rtx-5090", "0.32.0", "fp8", True),
        ("rtx-pro-6000", "0.28.0", "fp8", True),
        ("gb10", "0.28.0", "fp8", True),
        ("rtx-5090", "0.27.0", "fp8", False),
        ("rtx-5090", "0.32.0", "nvfp4", True),
        ("rtx-3090", "0.32.0", "fp8", False),
        ("l40s", "0.32.0", "fp8", False),
        ("h100-sxm", "0.32.0", "nvfp4", False),
        ("h100-sxm", "0.32.0", "fp8", True),
        ("b200", "0.27.0", "fp8", True),
        ("l40s", "0.32.0", "auto", True),
    ],
)
def test_whole_steps_of_drafts_are_captured_where_attention_has_a_kernel(
    gpu: str, release: str, cache: str, is_whole: bool
) -> None:
    """vllm#49547: FULL 31/31 on 12.1 in 0.28; vllm#54992: none on 8.6."""
    asked = {"engine_version": release, "kv_cache_dtype": cache}
    assert (whole_steps_of(gpu, max_model_len=2048, gpu_memory_utilization=0.95, **asked) > 0) is is_whole


@pytest.mark.parametrize("mode", ["interactivity", "throughput"])
def test_a_release_without_an_option_is_refused_with_it(mode: str) -> None:
    with pytest.raises(UsageError, match=r"--performance-mode is in vLLM from 0\.17\.0 on, and not in 0\.16\.0"):
        plan_of("Qwen/Qwen3-8B", "l40s", performance_mode=mode, engine_version="0.16.0")
    assert plan_of("Qwen/Qwen3-8B", "l40s", performance_mode=mode, engine_version="0.17.0").fits
    assert plan_of("Qwen/Qwen3-8B", "l40s", performance_mode="balanced", engine_version="0.16.0").fits


@pytest.mark.parametrize(
    ("gpu", "cache", "backend"),
    [
        ("h100-sxm", "fp8", "FlashAttention 3"),
        ("h100-sxm", "auto", "FlashAttention 3"),
        ("h100-sxm", "fp8_e5m2", "FlashInfer"),
        ("h100-sxm", "nvfp4", "FlashInfer"),
        ("h100-sxm", "fp8_per_token_head", None),
        ("b200", "int8_per_token_head", None),
        ("b200", "auto", "FlashInfer"),
        ("l40s", "fp8_per_token_head", None),
        ("l40s", "fp8", "FlashInfer"),
        ("mi300x", "fp8", None),
        ("rx-7900-xtx", "fp8", None),
        ("memory=80GiB,sm=108", "fp8", "FlashInfer"),
    ],
)
def test_which_backend_reads_a_cache(gpu: str, cache: str, backend: str | None) -> None:
    """vllm 0.32: supported_kv_cache_dtypes of flash_attn.py, flashinfer.py and triton_attn.py."""
    asked = {"max_num_seqs": 1024, "quant": "bf16", "max_model_len": 2048, "engine_version": "0.19.0"}
    formula = graphs_of("Qwen/Qwen2.5-7B-Instruct", gpu, kv_cache_dtype=cache, **asked).formula
    assert (backend in formula) if backend else ("FlashAttention" not in formula and "FlashInfer" not in formula)


@pytest.mark.parametrize(("gpu", "cache"), [("h100-sxm:8", "auto"), ("b200:4", "auto"), ("rtx-pro-6000:4", "fp8")])
def test_an_index_of_sparse_attention_has_kernels_of_its_own(gpu: str, cache: str) -> None:
    formula = graphs_of("Qwen/Qwen3.8-Flash-Next", gpu, quant="fp8", max_num_seqs=1024, kv_cache_dtype=cache).formula
    assert "FlashAttention" not in formula and "FlashInfer" not in formula


@pytest.mark.parametrize("gpu", ["mi300x:4", "w7900:4", "mi300x:3"])
def test_cards_of_amd_sum_without_nccl(gpu: str) -> None:
    asked = {"tensor_parallel_size": 4 if gpu.endswith("4") else 1, "max_num_seqs": 8, "max_model_len": 2048}
    assert "NCCL" not in graphs_of("Qwen/Qwen2.5-7B-Instruct", gpu, **asked).formula


@pytest.mark.parametrize(("gpu", "workspace"), [("b200", "394 MiB"), ("b300", "394 MiB"), ("rtx-pro-6000", "1.50 GiB")])
def test_the_workspace_of_data_centre_blackwell_has_one_size(gpu: str, workspace: str) -> None:
    """TensorRT-LLM's is VLLM_FLASHINFER_WORKSPACE_BUFFER_SIZE; 16 bytes of 16384 tokens of 24 heads of 256 are more."""
    asked = {"quant": "fp8", "max_num_batched_tokens": 16384, "max_num_seqs": 16, "kv_cache_dtype": "fp8"}
    assert graphs_of("Qwen/Qwen3.6-27B", gpu, **asked).formula.startswith(f"{workspace} (FlashInfer's workspace)")


def test_whole_steps_of_drafts_hold_whole_sequences() -> None:
    """vllm#49547, 0.28 on GB10 with four drafts: 49 piecewise graphs and 31 whole steps, at 48 sequences."""
    assert Captures(48, 2048, 4, piecewise_only=True).num_graphs == 49
    assert Captures(48, 2048, 4).num_graphs == 49 + 31


@pytest.mark.parametrize(
    ("seqs", "tokens", "drafts", "more"),
    [
        (256, 2048, 0, 0),  # a size anyhow
        (100, 2048, 0, 2),  # 100 of each kind
        (1000, 8192, 0, 0),  # above the largest
        (300, 400, 0, 1 + 1),  # 300 of each kind; 400 is a size
        (100, 150, 0, 1 + 2),  # and 150, a piecewise one
        (3, 2048, 2, 3),  # 3, 6 and 9, to which whole steps of 1 to 8 are rounded up anyhow
    ],
)
def test_0_32_captures_the_largest_decode_step_itself(seqs: int, tokens: int, drafts: int, more: int) -> None:
    newer, older = (Captures(seqs, tokens, drafts, fits_decode=fits).num_graphs for fits in (True, False))
    assert newer - older == more
    assert Captures(seqs, tokens, drafts, largest_asked=64, fits_decode=True).num_graphs == (
        Captures(seqs, tokens, drafts, largest_asked=64).num_graphs
    )
