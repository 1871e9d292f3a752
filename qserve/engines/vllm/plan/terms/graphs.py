"""CUDA graphs: what capturing them leaves on the card."""

from __future__ import annotations

from typing import Literal

from qserve.engines.vllm.plan import constants
from qserve.engines.vllm.plan.backends import is_datacenter_blackwell, reduces_by_nccl
from qserve.engines.vllm.plan.terms.bnb_scratch import experts_scratch_bytes
from qserve.engines.vllm.plan.trial import Trial
from qserve.planner.constants import Constant
from qserve.planner.term import TermKind
from qserve.units import MIB, format_bytes

__all__ = ["CudaGraphs", "cuda_graph_bytes", "first_graph_bytes", "graph_bytes_per_layer", "reduce_bytes"]

Bound = Literal["num_bytes", "low_bytes", "high_bytes"]

_ACTIVATION_BYTES = 2  # bf16 and fp16 alike
_REDUCES_A_LAYER = 2  # of attention's output and of the MLP's; the embedding's is one more


def cuda_graph_bytes(sizes: Trial, bound: Bound = "num_bytes") -> int:
    """Graphs of one rank without adapters: what the first ones share, and each later one's layers and all-reduces.

    `bound`: every measured part as expected, or as low or high as it was seen.
    """
    each = max(sizes.most_layers * _at(graph_bytes_per_layer(sizes), bound), MIB)
    return first_graph_bytes(sizes, bound) + num_later(sizes) * (each + reduce_bytes(sizes, bound))


def num_later(sizes: Trial) -> int:
    return max(0, sizes.captures.num_graphs - sizes.captures.num_modes)


def first_graph_bytes(sizes: Trial, bound: Bound = "num_bytes") -> int:
    """The pool: a step of the largest piecewise graph's tokens, or attention's part of a whole decode step if more."""
    spec, ranks = sizes.spec, sizes.candidate.tensor_parallel_size
    widths = 3 * spec.intermediate_size // ranks + 2 * spec.hidden_size
    step = _at(constants.GRAPH_BYTES_FIRST, bound) + sizes.captures.largest * widths * _ACTIVATION_BYTES
    return max(step, attention_bytes(sizes))


def attention_bytes(sizes: Trial) -> int:
    """What attention makes for the first whole decode step that is captured.

    FlashAttention 3: 32·B·heads·head_dim·4, the parts' sums of B tokens. FlashInfer: its workspace, which nothing
    before has made; the second runner prepares attention for piecewise graphs as well. On data-centre Blackwell that is
    TensorRT-LLM's, which has one size. Source: vllm flash_attn.py, flashinfer.py (_get_trtllm_workspace_buffer,
    _get_workspace_buffer), gpu/cudagraph_utils.py.
    """
    spec, version = sizes.spec, sizes.version
    heads = -(-spec.num_attention_heads // sizes.candidate.tensor_parallel_size) * spec.head_dim
    full = sizes.captures.largest_full
    if sizes.runs_flashinfer and (full or version.runs_model_runner_v2(spec)):
        by_step = sizes.max_num_batched_tokens * heads * constants.FLASHINFER_WORKSPACE_PER_ELEMENT
        grows = version.sizes_flashinfer_workspace and not is_datacenter_blackwell(sizes.device)
        return max(constants.FLASHINFER_WORKSPACE_BYTES, by_step if grows else 0)
    return constants.FLASH_ATTENTION_3_SPLITS * full * heads * 4 if sizes.runs_flash_attention_3 else 0


def reduce_bytes(sizes: Trial, bound: Bound = "num_bytes") -> int:
    """Of one graph's all-reduces; 0 of a rank that shares its layers with no other."""
    if sizes.candidate.tensor_parallel_size == 1:
        return 0
    by_nccl = reduces_by_nccl(sizes.candidate)
    each = constants.GRAPH_BYTES_PER_NCCL_REDUCE if by_nccl else constants.GRAPH_BYTES_PER_OWN_REDUCE
    return (_REDUCES_A_LAYER * sizes.most_layers + 1) * _at(each, bound)


def _at(constant: Constant, bound: Bound) -> int:
    bytes_there: int = getattr(constant, bound)
    return bytes_there


def graph_bytes_per_layer(sizes: Trial) -> Constant:
    """Measured: in the first runner experts, hybrids and packed weights launch more kernels a layer."""
    spec, version, on_hopper = sizes.spec, sizes.version, sizes.runs_flash_attention_3
    if version.runs_model_runner_v2(spec):
        if spec.is_hybrid:
            return constants.GRAPH_BYTES_PER_LAYER_HYBRID_V2
        return constants.GRAPH_BYTES_PER_LAYER_V2_HOPPER if on_hopper else constants.GRAPH_BYTES_PER_LAYER_V2
    if spec.is_hybrid:
        is_rich = spec.moe is not None or spec.quantization is not None
        return constants.GRAPH_BYTES_PER_LAYER_HYBRID_RICH if is_rich else constants.GRAPH_BYTES_PER_LAYER_HYBRID
    if spec.moe is not None:
        is_slim = version.captures_slim_experts
        return constants.GRAPH_BYTES_PER_LAYER_EXPERTS_SLIM if is_slim else constants.GRAPH_BYTES_PER_LAYER_EXPERTS
    if spec.quantization:
        return constants.GRAPH_BYTES_PER_LAYER_PACKED
    return constants.GRAPH_BYTES_PER_LAYER_HOPPER if on_hopper else constants.GRAPH_BYTES_PER_LAYER


class CudaGraphs(TermKind[Trial]):
    name, column, learned = "CUDA graphs", "cuda_graphs", "cuda_graphs"

    def num_bytes(self, sizes: Trial, stage: int) -> int:
        return 0 if sizes.options.enforce_eager else _with_adapters(sizes, cuda_graph_bytes(sizes))

    def formula(self, sizes: Trial, stage: int) -> str:
        if sizes.options.enforce_eager:
            return "none"
        plain = (
            f"{_first(sizes)} + {num_later(sizes)} more graphs × {sizes.most_layers} layers × "
            f"{format_bytes(graph_bytes_per_layer(sizes).num_bytes)}"
        )
        if reduced := reduce_bytes(sizes):
            whose = "NCCL's" if reduces_by_nccl(sizes.candidate) else "its"
            plain += f", and {format_bytes(reduced)} of {whose} all-reduces in each"
        once = _experts_scratch(sizes)
        unpacked = f" + {format_bytes(once)} of experts unpacked from 4 bit" if once else ""
        if not sizes.options.enable_lora:
            return plain + unpacked
        factor = f"{constants.ADAPTER_GRAPHS:g}"
        if not sizes.version.captures_without_adapters:
            return f"({plain}) × {factor} with adapters{unpacked}"
        return f"({plain}) × (1 + {factor}): each is captured without and with adapters (vllm#25914){unpacked}"

    def source(self, sizes: Trial) -> str:
        return graph_bytes_per_layer(sizes).source

    def band(self, sizes: Trial, num_bytes: int) -> tuple[int, int]:
        if not num_bytes:
            return 0, 0
        low, high = (_with_adapters(sizes, cuda_graph_bytes(sizes, bound)) for bound in ("low_bytes", "high_bytes"))
        if sizes.has_fp4_experts:
            high += min(sizes.captures.num_graphs * constants.FP4_GRAPH_BYTES, constants.FP4_GRAPHS_MOST_BYTES)
        return low, high

    def is_charged(self, sizes: Trial) -> bool:
        """Before 0.20 they came out of what the share left over."""
        return sizes.subtracts_cuda_graphs

    def is_shown(self, sizes: Trial, num_bytes: int) -> bool:
        return True


def _with_adapters(sizes: Trial, plain: int) -> int:
    once = _experts_scratch(sizes)
    if not sizes.options.enable_lora:
        return once + plain
    return once + int(plain * constants.ADAPTER_GRAPHS) + (plain if sizes.version.captures_without_adapters else 0)


def _first(sizes: Trial) -> str:
    """The first graph in words: which of its two parts is the larger."""
    shown = format_bytes(first_graph_bytes(sizes))
    if attention_bytes(sizes) < first_graph_bytes(sizes):
        return shown
    if sizes.runs_flashinfer:
        return f"{shown} (FlashInfer's workspace)"
    return f"{shown} (FlashAttention 3's {constants.FLASH_ATTENTION_3_SPLITS} parts of {sizes.captures.largest_full})"


def _experts_scratch(sizes: Trial) -> int:
    """Experts in 16 bit, once: graphs share a pool of their own, which holds the largest that one of them needs."""
    return experts_scratch_bytes(sizes.spec, sizes.quantization, sizes.candidate.tensor_parallel_size)
