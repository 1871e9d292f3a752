"""The table of rotary angles that an engine keeps."""

from __future__ import annotations

from qserve.core.model_spec import ModelSpec
from qserve.core.tensors import dtype_bytes

__all__ = ["rope_cache_bytes"]


def rope_cache_bytes(spec: ModelSpec, dtype: str) -> int:
    """cos and sin of every position that there is an angle for, rotary_dim elements each, once for all layers.

    Multimodal rotary embeddings (M-RoPE) cache four times the positions.
    Source: vllm model_executor/layers/rotary_embedding/{base,mrope}.py.
    """
    positions = spec.rope.cached * (4 if spec.vision or spec.rope.sections else 1)
    return positions * spec.rotary_dim * dtype_bytes(dtype)
