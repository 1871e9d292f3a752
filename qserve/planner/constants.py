"""A measured figure, and those that belong to a card whatever engine computes on it."""

from __future__ import annotations

from dataclasses import dataclass

from qserve.units import MIB

__all__ = ["CUBLAS_WORKSPACE_AMPERE", "CUBLAS_WORKSPACE_HOPPER", "CUDA_CONTEXT_SINGLE", "Constant"]


@dataclass(frozen=True)
class Constant:
    """A measured figure with its band and where it comes from."""

    num_bytes: int
    low_bytes: int
    high_bytes: int
    source: str

    def plus(self, other: Constant) -> Constant:
        """Both together; the bounds of each may come at once."""
        low, high = self.low_bytes + other.low_bytes, self.high_bytes + other.high_bytes
        return Constant(self.num_bytes + other.num_bytes, low, high, f"{self.source}; {other.source}")


CUDA_CONTEXT_SINGLE = Constant(522 * MIB, 300 * MIB, 700 * MIB, "vLLM 0.19, H100, one card: memory before loading")

# torch's cuBLAS workspace: part of every peak. Source: aten/src/ATen/cuda/CublasHandlePool.cpp.
CUBLAS_WORKSPACE_AMPERE = Constant(8_519_680, 8_519_680, 8_519_680, "torch, :4096:2:16:8, before Hopper")
CUBLAS_WORKSPACE_HOPPER = Constant(32 * MIB, 32 * MIB, 32 * MIB, "torch, Hopper and Blackwell")
