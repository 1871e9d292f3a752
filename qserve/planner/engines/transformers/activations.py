"""Whether a CPU rounds activations to 8 bits where weights are in 4 or 8 (model/cpu/activations.py)."""

from __future__ import annotations

from typing import Literal

from qserve.core.hardware import CpuFeatures, Device

__all__ = ["Activations", "CpuActivations", "activations_of"]

CpuActivations = Literal["auto", "exact", "int8"]
"""What may be asked for."""
Activations = Literal["exact", "int8"]

# LLM.int8 and W8A8 are defined with activations in 8 bits, and coarser ones; beside what 4 bits lose of the weights it
# is about a hundredth (docs/results/cpu.md).
_BY_DEFAULT = frozenset({"bnb-int8", "w8a8", "bnb-nf4", "bnb-nf4-single", "bnb-fp4", "awq", "gptq-int4", "w4a16"})
# Weights in 8 bits whose activations are 16 bit by definition; they lose so little that rounding would show.
_WHEN_ASKED = frozenset({"gptq-int8", "w8a16"})
# The products of qserve/model/cpu/integers.c or of integers_avx2.c.
_INSTRUCTIONS = (frozenset({"avx512_vnni"}), frozenset({"avx2", "fma"}))


def activations_of(
    asked: CpuActivations, schemes: frozenset[str], dtype: str, device: Device, cpu: CpuFeatures
) -> Activations:
    """What is done where `asked` was given: exact wherever nothing of ours multiplies integers.

    `schemes`: of all modules; one that has to be asked keeps the others exact too.
    """
    has_integers = any(cpu.flags >= needed for needed in _INSTRUCTIONS)
    if asked == "exact" or dtype != "bfloat16" or device.kind != "cpu" or not has_integers:
        return "exact"
    if asked == "int8":
        return "int8" if schemes & (_BY_DEFAULT | _WHEN_ASKED) else "exact"
    return "int8" if schemes & _BY_DEFAULT and not schemes & _WHEN_ASKED else "exact"
