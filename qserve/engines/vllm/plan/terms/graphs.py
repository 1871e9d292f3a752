"""CUDA graphs: what capturing them leaves on the card."""

from __future__ import annotations

from qserve.engines.vllm.plan import constants
from qserve.engines.vllm.plan.memory.graphs import cuda_graph_bytes, graph_bytes_per_layer
from qserve.engines.vllm.plan.memory.unpacked import unpacked_experts_bytes
from qserve.engines.vllm.plan.sizing import Sizing
from qserve.planner.term import TermKind
from qserve.units import format_bytes

__all__ = ["CudaGraphs"]


class CudaGraphs(TermKind[Sizing]):
    name, column, learned = "CUDA graphs", "cuda_graphs", "cuda_graphs"

    def num_bytes(self, sizes: Sizing, stage: int) -> int:
        if sizes.options.enforce_eager:
            return 0
        plain = cuda_graph_bytes(sizes.spec, sizes.version, sizes.captures, sizes.most_layers)
        if not sizes.options.enable_lora:
            return _unpacked(sizes) + plain
        adapted = int(plain * constants.ADAPTER_GRAPHS)
        return _unpacked(sizes) + adapted + (plain if sizes.version.captures_without_adapters else 0)

    def formula(self, sizes: Sizing, stage: int) -> str:
        if sizes.options.enforce_eager:
            return "none"
        later = max(0, sizes.captures.num_graphs - sizes.captures.num_modes)
        first, each = constants.GRAPH_BYTES_FIRST, graph_bytes_per_layer(sizes.spec, sizes.version)
        plain = (
            f"{format_bytes(first.num_bytes)} + {later} more graphs × {sizes.most_layers} layers × "
            f"{format_bytes(each.num_bytes)}"
        )
        once = _unpacked(sizes)
        unpacked = f" + {format_bytes(once)} of experts unpacked from 4 bit" if once else ""
        if not sizes.options.enable_lora:
            return plain + unpacked
        factor = f"{constants.ADAPTER_GRAPHS:g}"
        if not sizes.version.captures_without_adapters:
            return f"({plain}) × {factor} with adapters{unpacked}"
        return f"({plain}) × (1 + {factor}): each is captured without and with adapters (vllm#25914){unpacked}"

    def source(self, sizes: Sizing) -> str:
        return graph_bytes_per_layer(sizes.spec, sizes.version).source

    def band(self, sizes: Sizing, num_bytes: int) -> tuple[int, int]:
        if sizes.has_fp4_experts and num_bytes:
            each = min(sizes.captures.num_graphs * constants.FP4_GRAPH_BYTES, constants.FP4_GRAPHS_MOST_BYTES)
            return num_bytes // 2, num_bytes + constants.FP4_GRAPHS_FIRST_BYTES + each
        return num_bytes // 2, num_bytes * 3 // 2

    def is_charged(self, sizes: Sizing) -> bool:
        """Before 0.21 they came out of what the share left over."""
        return sizes.subtracts_cuda_graphs

    def is_shown(self, sizes: Sizing, num_bytes: int) -> bool:
        return True


def _unpacked(sizes: Sizing) -> int:
    """Experts in 16 bit, once: graphs share a pool of their own, which holds the largest that one of them needs."""
    return unpacked_experts_bytes(sizes.spec, sizes.quantization, sizes.setup.tensor_parallel_size)
