"""Whose kernels compute a quantization on a card: those of its own arithmetic, or such as unpack it."""

from __future__ import annotations

from dataclasses import replace

from qserve.core.quantization.weight_format import WeightFormat
from qserve.core.schemes import SCHEMES

__all__ = ["weight_format"]

_MARLIN_BANDWIDTH_9, _MARLIN_PEAK_9 = 0.8, 0.52
"""Marlin's kernels beside cuBLAS from Hopper on: bandwidth by Qwen's tables of SGLang 0.4.6 on an H20, where AWQ
reaches three quarters of what bf16 does; peak: Marlin multiplies by mma.sync, which reaches 63 % of what wgmma does
(arXiv 2402.13499)."""


def weight_format(scheme: str, formats: tuple[str, ...], is_hopper: bool = False) -> WeightFormat:
    """How `scheme` runs on a card whose arithmetic has `formats` (fp8, fp4, int8): natively, or unpacked on the way.

    A card without the format's arithmetic keeps the bytes and computes in 16 bit, as vLLM's Marlin kernels do.
    `is_hopper`: compute capability 9.0 and later.
    """
    row = SCHEMES[scheme]
    if row.native is not None and row.native.math in formats:
        return row.native
    found = row.unpacked
    if "Marlin" in found.name and is_hopper:
        return replace(found, bandwidth_factor=_MARLIN_BANDWIDTH_9, peak_factor=_MARLIN_PEAK_9)
    return found
