"""What a model takes on one card: its own bytes, and a guess of what an engine there holds beside them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from qserve.core.packing import pack
from qserve.core.quantization.stored import CheckpointQuantization
from qserve.core.schemes import SCHEMES
from qserve.core.tensors import Tensor
from qserve.planner.candidate import Candidate
from qserve.planner.memory.kv import kv_bytes_per_token, kv_element_bytes, state_bytes
from qserve.planner.memory.weights import Loading, rank_weights
from qserve.units import MIB

__all__ = ["RUNTIME_BYTES", "USABLE_SHARE", "PlanOnlyEstimate"]

USABLE_SHARE = 0.9
"""Of the card, as vLLM's own gpu_memory_utilization; an engine that takes more has more cache."""
RUNTIME_BYTES = (256 * MIB, 768 * MIB, 2048 * MIB)
"""Least, assumed, most: the driver's context, compiled kernels and the engine's own buffers. Nothing was measured."""
_DEFAULT_SEQS, _DEFAULT_STEP = 16, 2048


@dataclass(frozen=True)
class PlanOnlyEstimate:
    """One candidate on each of its cards, all alike."""

    candidate: Candidate

    @property
    def max_num_seqs(self) -> int:
        return self.candidate.request.max_num_seqs or _DEFAULT_SEQS

    @property
    def max_num_batched_tokens(self) -> int:
        return self.candidate.request.max_num_batched_tokens or _DEFAULT_STEP

    @cached_property
    def weights_bytes(self) -> int:
        """Of one card."""
        candidate, how = self.candidate, self.candidate.in_flight
        tensors, embeddings = candidate.tensors, 0
        if how is not None and how.covers_every_linear:
            embeddings = sum(_packed(one, how) for one in tensors if one.role == "embedding")
            tensors = tuple(one for one in tensors if one.role != "embedding")
        loading = Loading(candidate.dtype, how, candidate.tensor_parallel_size)
        return embeddings + rank_weights(candidate.spec, tensors, loading)

    @cached_property
    def kv_token_bytes(self) -> int:
        """Of one card."""
        candidate = self.candidate
        element = kv_element_bytes(candidate.kv_cache_dtype, candidate.dtype)
        return kv_bytes_per_token(candidate.spec, element, candidate.tensor_parallel_size)

    @cached_property
    def state_bytes(self) -> int:
        """Of one card: the linear-attention states of all sequences."""
        candidate, linear = self.candidate, self.candidate.spec.linear_attention
        if linear is None:
            return 0
        each = state_bytes(linear, candidate.dtype, "float32", 1, candidate.tensor_parallel_size)
        return self.max_num_seqs * candidate.spec.num_linear_layers * each

    @cached_property
    def activations_bytes(self) -> int:
        """Two layers' inputs and outputs of a step's tokens in 16 bit, and logits of all sequences in 32."""
        spec, tokens = self.candidate.spec, self.max_num_batched_tokens
        inner = spec.intermediate_size
        if spec.moe is not None:
            each = spec.moe.num_experts_per_tok * spec.moe.moe_intermediate_size
            inner = max(inner, each + spec.moe.shared_expert_intermediate_size)
        width = 3 * inner // self.candidate.tensor_parallel_size + 4 * spec.hidden_size
        return 2 * tokens * width + 4 * min(self.max_num_seqs, tokens) * spec.vocab_size

    @cached_property
    def left_bytes(self) -> int:
        """For keys and values on one card, states taken off; negative where weights alone are too much."""
        device = self.candidate.devices[0]
        most = min(int(device.total_bytes * USABLE_SHARE), device.available_bytes)
        return most - self.weights_bytes - self.activations_bytes - RUNTIME_BYTES[1] - self.state_bytes


def _packed(embedding: Tensor, how: CheckpointQuantization) -> int:
    """An embedding that is quantized as linear layers are: by the name of the head, which has its shape."""
    if len(embedding.shape) != 2 or SCHEMES[how.scheme].is_stored:
        return embedding.nbytes
    return sum(piece.nbytes for piece in pack([replace(embedding, name="lm_head.weight")], how))
