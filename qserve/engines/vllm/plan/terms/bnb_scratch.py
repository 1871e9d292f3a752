"""bitsandbytes' 4 bit in vLLM on CUDA: what a step unpacks into 16 bit before it multiplies.

Sources: vllm-bnb-plugin 0.0.3 (in vLLM itself up to 0.27), fused_moe.py: _apply_4bit_dequnt, for all experts of a layer
in every step, inside captured graphs too; bitsandbytes 0.50, backends/cuda/ops.py: gemm_4bit, for one matrix at a time
where a step has more than 1536 tokens.
"""

from __future__ import annotations

from qserve.core.model_spec import ModelSpec
from qserve.core.quantization.stored import CheckpointQuantization
from qserve.core.schemes import SCHEMES

__all__ = ["experts_scratch_bytes", "layer_scratch_bytes"]

_ELEMENT_BYTES = 2


def layer_scratch_bytes(spec: ModelSpec, held: CheckpointQuantization | None, tensor_parallel_size: int = 1) -> int:
    """Beside a layer's activations on one rank: its experts, or the gate or the up projection; 0 in other formats."""
    if not _unpacks(held):
        return 0
    matrix = spec.hidden_size * spec.intermediate_size * _ELEMENT_BYTES // tensor_parallel_size
    return max(matrix, experts_scratch_bytes(spec, held, tensor_parallel_size))


def experts_scratch_bytes(spec: ModelSpec, held: CheckpointQuantization | None, tensor_parallel_size: int = 1) -> int:
    """All routed experts of one layer, 2·3·E·H·I/tp; 0 for a dense model and in other formats."""
    if spec.moe is None or not _unpacks(held):
        return 0
    each = 3 * spec.hidden_size * spec.moe.moe_intermediate_size
    return spec.moe.num_experts * each * _ELEMENT_BYTES // tensor_parallel_size


def _unpacks(held: CheckpointQuantization | None) -> bool:
    return held is not None and SCHEMES[held.scheme].by_bitsandbytes and held.bits == 4
