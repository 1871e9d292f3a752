"""What is held back where start-up logs showed more on the card than the other terms count: the lower band decides."""

from __future__ import annotations

from qserve.planner.engines.vllm.sizing import Sizing
from qserve.planner.term import TermKind
from qserve.units import GIB, MIB, format_bytes

__all__ = ["HELD_BACK", "HeldBack"]

HELD_BACK = "held back"

# Four starts of a 35B-A3B in NVFP4 on an RTX 5090 under WSL2, vLLM 0.19 and 0.20: 0.8 to 1.4 GiB more than counted.
_FP4_KERNELS_BYTES = int(0.95 * GIB)
# The same on a GB10 with steps of 65536 tokens: 4.2 GiB, so that experts take about 4 B a token, expert and column.
_FP4_EXPERT_BYTES = 4
_FP4_GRAPH_BYTES, _FP4_GRAPHS_MOST = 50 * MIB, 1 * GIB
# Of a GB10's 120 GiB, which the CPU shares, the engine's processes held 0.8 to 5.7 GiB, and 2.0 are counted.
_INTEGRATED_SHARE = 0.03


class HeldBack(TermKind[Sizing]):
    """Nothing where --gpu-memory-utilization or --kv-cache-memory-bytes says how much is to be taken."""

    name, column = HELD_BACK, "runtime"

    def num_bytes(self, sizes: Sizing, stage: int) -> int:
        is_fixed = sizes.options.gpu_memory_utilization or sizes.setup.request.kv_cache_memory_bytes is not None
        if is_fixed or sizes.setup.request.learned:
            return 0
        return _fp4(sizes) + _shared(sizes)

    def formula(self, sizes: Sizing, stage: int) -> str:
        what = []
        if _fp4(sizes):
            what.append(f"{format_bytes(_fp4(sizes))} that NVFP4 kernels, their experts and graphs may take beyond")
        if _shared(sizes):
            what.append(f"{format_bytes(_shared(sizes))} that the engine's own processes may take of shared memory")
        return f"{', '.join(what)} what is counted; --gpu-memory-utilization takes it"

    def source(self, sizes: Sizing) -> str:
        return "start-up logs that were off by up to this: docs/results/planner.md"

    def band(self, sizes: Sizing, num_bytes: int) -> tuple[int, int]:
        return 0, num_bytes


def _fp4(sizes: Sizing) -> int:
    found, moe = sizes.quantization, sizes.spec.moe
    if found is None or found.scheme != "nvfp4":
        return 0
    experts = graphs = 0
    if moe is not None:
        experts = sizes.max_num_batched_tokens * moe.num_experts_per_tok * sizes.spec.hidden_size * _FP4_EXPERT_BYTES
        if not sizes.options.enforce_eager:
            graphs = min(sizes.captures.num_graphs * _FP4_GRAPH_BYTES, _FP4_GRAPHS_MOST)
    return _FP4_KERNELS_BYTES + experts + graphs


def _shared(sizes: Sizing) -> int:
    return int(_INTEGRATED_SHARE * sizes.device.total_bytes) if sizes.device.is_integrated else 0
