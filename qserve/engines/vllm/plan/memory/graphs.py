"""CUDA graphs of vLLM: which it captures, and what they hold."""

from __future__ import annotations

from dataclasses import dataclass

from qserve.core.model_spec import ModelSpec
from qserve.engines.vllm.plan import constants
from qserve.engines.vllm.plan.versions import VllmVersion
from qserve.planner.constants import Constant
from qserve.units import MIB

__all__ = ["Captures", "cuda_graph_bytes", "graph_bytes_per_layer"]


@dataclass(frozen=True)
class Captures:
    """Which graphs vLLM captures: what fixes their sizes, and whether whole decode steps are captured as well."""

    max_num_seqs: int
    max_num_batched_tokens: int
    num_speculative_tokens: int = 0
    piecewise_only: bool = False
    largest_asked: int | None = None

    @property
    def num_modes(self) -> int:
        return 1 if self.piecewise_only else 2

    @property
    def num_graphs(self) -> int:
        """Piecewise graphs up to min(2·S·(1 + k), 512) tokens and full ones up to S·(1 + k), for k drafted tokens.

        --max-cudagraph-capture-size takes the place of that minimum. Sizes are 1, 2, 4, then steps of 8, of 16 from
        256. Source: vllm VllmConfig._set_cudagraph_sizes.
        """
        decode = self.max_num_seqs * (1 + self.num_speculative_tokens)
        largest = min(self.largest_asked or min(2 * decode, 512), self.max_num_batched_tokens)
        steps = (1, 2, 4, *range(8, 256, 8), *range(256, 513, 16))
        full = 0 if self.piecewise_only else min(largest, decode)
        return sum((size <= largest) + (size <= full) for size in steps)


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
