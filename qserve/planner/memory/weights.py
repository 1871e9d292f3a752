"""Weights as they lie in memory after loading, per rank."""

from __future__ import annotations

from collections.abc import Iterable

from qserve.core.quantization import SCHEMES
from qserve.core.tensors import Tensor, dtype_bytes

__all__ = ["loaded_bytes"]

# What quantization in flight touches; embeddings, heads, norms, routers and the vision encoder stay in 16 bit.
_QUANTIZED_ROLES = ("linear", "expert")


def loaded_bytes(tensors: Iterable[Tensor], dtype: str, scheme: str | None) -> int:
    """Bytes of `tensors` on one device. `scheme` is the in-flight quantization; None loads them as stored.

    Floating-point tensors are cast to `dtype`; packed integers and fp8 stay as they are.
    """
    return sum(_tensor_bytes(tensor, dtype, scheme) for tensor in tensors)


def _tensor_bytes(tensor: Tensor, dtype: str, scheme: str | None) -> int:
    if scheme is not None and tensor.role in _QUANTIZED_ROLES and len(tensor.shape) == 2:
        return round(tensor.num_elements * SCHEMES[scheme].bytes_per_weight)
    if _is_float(tensor.dtype):
        return tensor.num_elements * dtype_bytes(dtype)
    return tensor.nbytes


def _is_float(dtype: str) -> bool:
    return dtype in ("F64", "F32", "F16", "BF16", "float64", "float32", "float16", "bfloat16")
