"""KV cache: bytes per token of the layers that have one."""

from __future__ import annotations

from qserve.core.model_spec import ModelSpec
from qserve.core.tensors import dtype_bytes

__all__ = ["kv_bytes_per_token", "kv_element_bytes"]


def kv_element_bytes(kv_cache_dtype: str, dtype: str) -> int:
    """Bytes of one K or V element; `auto` is the model's dtype."""
    return dtype_bytes(dtype if kv_cache_dtype == "auto" else kv_cache_dtype)


def kv_bytes_per_token(spec: ModelSpec, element_bytes: int, tensor_parallel_size: int = 1) -> int:
    """Bytes of one token on one rank: K and V of every attention layer.

    KV heads split over tensor-parallel ranks, and replicate where there are fewer heads than ranks.
    """
    heads = max(1, spec.num_key_value_heads // tensor_parallel_size)
    layers = spec.num_full_layers + spec.num_sliding_layers
    return 2 * layers * heads * spec.head_dim * element_bytes
