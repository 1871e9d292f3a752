"""How a quantization is computed: what a product reads of a weight, and whose kernels run it."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["BF16", "FP8_MARLIN", "INT4_MARLIN", "INT8_MARLIN", "NATIVE_FP8", "NATIVE_FP8_BLOCK", "NF4", "WeightFormat"]

_MARLIN_BANDWIDTH, _MARLIN_PEAK = 1.10, 0.82
"""Marlin's kernels beside cuBLAS: fitted to Qwen's tables of vLLM 0.6.3 on an A100, six sizes."""


@dataclass(frozen=True)
class WeightFormat:
    """`gemm` and `experts` name rows of the kernel tables, `math` the peak that bounds them.

    `bytes_per_weight` counts scales. The factors hold the kernel against the one whose row it borrows.
    `unpacked_bytes` are written and read once more per weight where a kernel unpacks to 16 bit before it multiplies.
    """

    name: str
    bytes_per_weight: float = 2.0
    gemm: str = "bf16"
    experts: str = "bf16"
    math: str = "bf16"
    bandwidth_factor: float = 1.0
    peak_factor: float = 1.0
    unpacked_bytes: float = 0.0

    def bytes_read(self, tokens: int) -> float:
        """Bytes that move per weight in a GEMM of `tokens` tokens; one token has kernels that unpack nothing."""
        return self.bytes_per_weight + (self.unpacked_bytes if tokens > 1 else 0.0)


BF16 = WeightFormat("bf16")
NATIVE_FP8 = WeightFormat("fp8", 1.0, "fp8", "fp8", "fp8")
NATIVE_FP8_BLOCK = WeightFormat("fp8", 1.0, "fp8", "fp8_block", "fp8", 0.915, 0.944)
"""Blocks of 128: between the table, whose launches are eager, and per-tensor scales; fitted end to end."""
FP8_MARLIN = WeightFormat("fp8 (Marlin)", 1.03, peak_factor=0.9)
INT8_MARLIN = WeightFormat("int8 (Marlin)", 1.0, peak_factor=0.9)
INT4_MARLIN = WeightFormat("int4 (Marlin)", 0.53, "bf16", "int4", "bf16", _MARLIN_BANDWIDTH, _MARLIN_PEAK)
NF4 = WeightFormat("nf4", 0.53, bandwidth_factor=0.8, unpacked_bytes=4.0)
