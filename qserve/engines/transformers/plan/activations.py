"""Whether a CPU rounds activations to 8 bits where weights are in 4 or 8 (model/cpu/activations.py)."""

from __future__ import annotations

from typing import Literal

from qserve.core.hardware import CpuFeatures, Device
from qserve.core.schemes import SCHEMES

__all__ = ["Activations", "CpuActivations", "activations_of"]

CpuActivations = Literal["auto", "exact", "int8"]
"""What may be asked for."""
Activations = Literal["exact", "int8"]

# The products of qserve/model/cpu/integers.c or of integers_avx2.c.
_INSTRUCTIONS = (frozenset({"avx512_vnni"}), frozenset({"avx2", "fma"}))


def activations_of(
    asked: CpuActivations, schemes: frozenset[str], dtype: str, device: Device, cpu: CpuFeatures
) -> Activations:
    """What is done where `asked` was given: exact wherever nothing of ours multiplies integers.

    `schemes`: of all modules; one that has to be asked keeps the others exact too. LLM.int8 and W8A8 are defined with
    activations in 8 bits, and coarser ones; beside what 4 bits lose of the weights it is about a hundredth
    (docs/results/cpu.md). Other weights in 8 bits lose so little that rounding would show, and are rounded when asked.
    """
    has_integers = any(cpu.flags >= needed for needed in _INSTRUCTIONS)
    if asked == "exact" or dtype != "bfloat16" or device.kind != "cpu" or not has_integers:
        return "exact"
    found = {SCHEMES[name].rounded for name in schemes}
    if asked == "int8":
        return "exact" if found <= {"never"} else "int8"
    return "int8" if "by default" in found and "when asked" not in found else "exact"
