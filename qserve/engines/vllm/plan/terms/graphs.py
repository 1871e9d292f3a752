"""CUDA graphs: what capturing them leaves on the card."""

from __future__ import annotations

from qserve.core.model_spec import ModelSpec
from qserve.engines.vllm.plan import constants
from qserve.engines.vllm.plan.terms.bnb_scratch import experts_scratch_bytes
from qserve.engines.vllm.plan.trial import Captures, Trial
from qserve.engines.vllm.plan.versions import VllmVersion
from qserve.planner.constants import Constant
from qserve.planner.term import TermKind
from qserve.units import MIB, format_bytes

__all__ = ["CudaGraphs", "cuda_graph_bytes", "graph_bytes_per_layer"]


def cuda_graph_bytes(spec: ModelSpec, version: VllmVersion, captures: Captures, num_layers: int) -> int:
    """Graphs of `num_layers` layers on one rank: what the first ones share, and each later one's layers."""
    later = max(0, captures.num_graphs - captures.num_modes)
    each = max(num_layers * graph_bytes_per_layer(spec, version).num_bytes, MIB)
    return constants.GRAPH_BYTES_FIRST.num_bytes + later * each


def graph_bytes_per_layer(spec: ModelSpec, version: VllmVersion) -> Constant:
    """Measured: experts and packed weights launch more kernels a layer, linear attention fewer."""
    is_rich = spec.moe is not None or spec.quantization is not None
    if spec.is_hybrid:
        is_slim = not is_rich or version.runs_model_runner_v2(spec)
        return constants.GRAPH_BYTES_PER_LAYER_HYBRID if is_slim else constants.GRAPH_BYTES_PER_LAYER_HYBRID_RICH
    if version.runs_model_runner_v2(spec) and spec.moe is None:
        return constants.GRAPH_BYTES_PER_LAYER_V2
    return constants.GRAPH_BYTES_PER_LAYER_RICH if is_rich else constants.GRAPH_BYTES_PER_LAYER


class CudaGraphs(TermKind[Trial]):
    name, column, learned = "CUDA graphs", "cuda_graphs", "cuda_graphs"

    def num_bytes(self, sizes: Trial, stage: int) -> int:
        if sizes.options.enforce_eager:
            return 0
        plain = cuda_graph_bytes(sizes.spec, sizes.version, sizes.captures, sizes.most_layers)
        if not sizes.options.enable_lora:
            return _experts_scratch(sizes) + plain
        adapted = int(plain * constants.ADAPTER_GRAPHS)
        return _experts_scratch(sizes) + adapted + (plain if sizes.version.captures_without_adapters else 0)

    def formula(self, sizes: Trial, stage: int) -> str:
        if sizes.options.enforce_eager:
            return "none"
        later = max(0, sizes.captures.num_graphs - sizes.captures.num_modes)
        first, each = constants.GRAPH_BYTES_FIRST, graph_bytes_per_layer(sizes.spec, sizes.version)
        plain = (
            f"{format_bytes(first.num_bytes)} + {later} more graphs × {sizes.most_layers} layers × "
            f"{format_bytes(each.num_bytes)}"
        )
        once = _experts_scratch(sizes)
        unpacked = f" + {format_bytes(once)} of experts unpacked from 4 bit" if once else ""
        if not sizes.options.enable_lora:
            return plain + unpacked
        factor = f"{constants.ADAPTER_GRAPHS:g}"
        if not sizes.version.captures_without_adapters:
            return f"({plain}) × {factor} with adapters{unpacked}"
        return f"({plain}) × (1 + {factor}): each is captured without and with adapters (vllm#25914){unpacked}"

    def source(self, sizes: Trial) -> str:
        return graph_bytes_per_layer(sizes.spec, sizes.version).source

    def band(self, sizes: Trial, num_bytes: int) -> tuple[int, int]:
        if sizes.has_fp4_experts and num_bytes:
            each = min(sizes.captures.num_graphs * constants.FP4_GRAPH_BYTES, constants.FP4_GRAPHS_MOST_BYTES)
            return num_bytes // 2, num_bytes + constants.FP4_GRAPHS_FIRST_BYTES + each
        return num_bytes // 2, num_bytes * 3 // 2

    def is_charged(self, sizes: Trial) -> bool:
        """Before 0.21 they came out of what the share left over."""
        return sizes.subtracts_cuda_graphs

    def is_shown(self, sizes: Trial, num_bytes: int) -> bool:
        return True


def _experts_scratch(sizes: Trial) -> int:
    """Experts in 16 bit, once: graphs share a pool of their own, which holds the largest that one of them needs."""
    return experts_scratch_bytes(sizes.spec, sizes.quantization, sizes.candidate.tensor_parallel_size)
