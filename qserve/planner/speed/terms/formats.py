"""How a quantization is computed: what a GEMM reads of a weight, and whose kernels run it."""

from __future__ import annotations

from dataclasses import dataclass, replace

__all__ = ["BF16", "WeightFormat", "weight_format"]

_MARLIN_BANDWIDTH, _MARLIN_PEAK = 1.10, 0.82
"""Marlin's kernels beside cuBLAS: fitted to Qwen's tables of vLLM 0.6.3 on an A100, six sizes."""
_MARLIN_BANDWIDTH_9, _MARLIN_PEAK_9 = 0.8, 0.52
"""The same from Hopper on: bandwidth by Qwen's tables of SGLang 0.4.6 on an H20, where AWQ reaches three quarters of
what bf16 does; peak: Marlin multiplies by mma.sync, which reaches 63 % of what wgmma does (arXiv 2402.13499)."""


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
_FP8_WEIGHTS_ONLY = WeightFormat("fp8 (Marlin)", 1.03, "bf16", "bf16", "bf16", 1.0, 0.9)
_INT4 = WeightFormat("int4 (Marlin)", 0.53, "bf16", "int4", "bf16", _MARLIN_BANDWIDTH, _MARLIN_PEAK)
# Blocks of 128: between the table, whose launches are eager, and per-tensor scales; fitted end to end.
_FP8_BLOCK = WeightFormat("fp8", 1.0, "fp8", "fp8_block", "fp8", 0.915, 0.944)
_NF4 = WeightFormat("nf4", 0.53, "bf16", "bf16", "bf16", 0.8, 1.0, unpacked_bytes=4.0)

_NATIVE = {
    "fp8": _FP8_BLOCK, "fp8_per_block": _FP8_BLOCK,
    "fp8_per_tensor": WeightFormat("fp8", 1.0, "fp8", "fp8", "fp8"),
    "fp8_per_channel": WeightFormat("fp8", 1.0, "fp8", "fp8", "fp8"),
    "mxfp8": WeightFormat("mxfp8", 1.03, "fp8", "fp8", "fp8"),
    "w8a8": WeightFormat("int8", 1.0, "fp8", "fp8", "int8"),
    "nvfp4": WeightFormat("nvfp4", 0.5625, "nvfp4", "nvfp4", "fp4"),
    "mxfp4": WeightFormat("mxfp4", 0.53, "nvfp4", "nvfp4", "fp4"),
}  # fmt: skip
_WEIGHTS_ONLY = {
    "fp32": WeightFormat("fp32", 4.0, peak_factor=0.5),
    "gptq-int8": WeightFormat("int8 (Marlin)", 1.03, "bf16", "bf16", "bf16", 1.0, 0.9),
    "w8a16": WeightFormat("int8 (Marlin)", 1.0, "bf16", "bf16", "bf16", 1.0, 0.9),
    "int8_per_channel_weight_only": WeightFormat("int8 (Marlin)", 1.0, "bf16", "bf16", "bf16", 1.0, 0.9),
    "bnb-int8": WeightFormat("int8 (bitsandbytes)", 1.0, "bf16", "bf16", "bf16", 0.6, 0.5),
    "awq": _INT4, "gptq-int4": _INT4, "w4a16": _INT4,
    "bnb-nf4": _NF4, "bnb-nf4-single": _NF4, "bnb-fp4": _NF4,
}  # fmt: skip


def weight_format(scheme: str, formats: tuple[str, ...], is_hopper: bool = False) -> WeightFormat:
    """How `scheme` runs on a card whose arithmetic has `formats` (fp8, fp4, int8): natively, or unpacked on the way.

    A card without the format's arithmetic keeps the bytes and computes in 16 bit, as vLLM's Marlin kernels do.
    `is_hopper`: compute capability 9.0 and later.
    """
    native = _NATIVE.get(scheme)
    if native is not None and native.math in formats:
        return native
    if native is None:
        found = _WEIGHTS_ONLY.get(scheme, BF16)
    else:
        found = _INT4 if native.bytes_per_weight < 0.6 else _FP8_WEIGHTS_ONLY
    if "Marlin" in found.name and is_hopper:
        return replace(found, bandwidth_factor=_MARLIN_BANDWIDTH_9, peak_factor=_MARLIN_PEAK_9)
    return found
