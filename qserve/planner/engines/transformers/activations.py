"""Whether a CPU rounds activations to 8 bits where weights are in 4 or 8 (model/cpu/activations.py)."""

from __future__ import annotations

from typing import Literal

from qserve.core.hardware import CpuFeatures, Device

__all__ = ["Activations", "CpuActivations", "activations_of"]

CpuActivations = Literal["auto", "exact", "int8"]
"""What may be asked for."""
Activations = Literal["exact", "int8"]

# LLM.int8 and W8A8 are defined with activations in 8 bits, and coarser ones (W8A16 is called w8a8 too: nothing tells
# them apart here); beside what 4 bits lose of the weights it is about a hundredth (docs/results/cpu.md).
_BY_DEFAULT = frozenset({"bnb-int8", "w8a8", "bnb-nf4", "bnb-nf4-single", "bnb-fp4", "awq", "gptq-int4", "w4a16"})
_ALLOWED = _BY_DEFAULT | {"gptq-int8"}
_INSTRUCTIONS = frozenset({"avx512_bf16", "avx512_vnni", "avx512vbmi"})


def activations_of(asked: CpuActivations, scheme: str, dtype: str, device: Device, cpu: CpuFeatures) -> Activations:
    """What is done where `asked` was given: exact wherever nothing of ours multiplies integers."""
    schemes = _ALLOWED if asked == "int8" else _BY_DEFAULT
    if asked == "exact" or scheme not in schemes or dtype != "bfloat16" or device.kind != "cpu":
        return "exact"
    return "int8" if cpu.flags >= _INSTRUCTIONS else "exact"
