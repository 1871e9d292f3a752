"""Activations rounded to 8 bits, a choice: prompts and batches are multiplied nearly twice as fast, and not exactly.

Of each row, 64 inputs share a scale. Where one of them is so large that the others would suffer, what rounding took
from that group is multiplied as well (planes.c), so outliers cost time and no precision. Weights stay what their format
says, but for NF4 and FP4, whose 16 values become multiples of one step, about a hundredth of the largest. However many
rows there are, all are rounded, so that a row's numbers do not depend on others. None is where that gains nothing: with
AVX2 and without VNNI only integers of 4 bits are multiplied faster (planes.h).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Literal

import torch
from torch import nn

from qserve.model.cpu.build import library, why_none
from qserve.model.cpu.experts import CompiledExperts
from qserve.model.cpu.linear import CompiledLinear
from qserve.model.cpu.matrix import Matrix, has_int8_activations

__all__ = ["exact_activations", "round_activations", "rounded_activations", "with_int8_activations"]

_GROUP = 64
_OFFSET = 128
# A table for vpermb: the same values whatever the two bits above a code are.
_COPIES = 4


def rounded_activations(model: nn.Module, wanted: Literal["exact", "int8"]) -> tuple[str, ...]:
    """Have the layers of `model` do what its plan says; a note where none can."""
    if wanted == "exact" or (library() is not None and round_activations(model)):
        return ()
    why = why_none() or "no layer of this model supports it on this processor"
    return (f"activations stay in 16 bit (--cpu-activations int8 rounds them): {why}",)


def round_activations(model: nn.Module) -> int:
    """From now on the layers of `model` whose weights allow it round their activations; returns how many."""
    num_rounded = 0
    for module in model.modules():
        if isinstance(module, CompiledLinear) and (matrix := with_int8_activations(module.matrix)) is not None:
            module.matrix = matrix
            num_rounded += 1
        if isinstance(module, CompiledExperts):
            made = [matrix for one in module.matrices if (matrix := with_int8_activations(one)) is not None]
            if len(made) == len(module.matrices):
                module.matrices = (made[0], made[1], made[2])
                num_rounded += 1
    return num_rounded


@contextmanager
def exact_activations(model: nn.Module) -> Iterator[None]:
    """Within it, nothing is rounded; for layers that Python calls, not for steps that are compiled already."""
    layers = [module for module in model.modules() if isinstance(module, CompiledLinear)]
    experts = [module for module in model.modules() if isinstance(module, CompiledExperts)]
    held, matrices_of_experts = [layer.matrix for layer in layers], [one.matrices for one in experts]
    for layer, matrix in zip(layers, held, strict=True):
        layer.matrix = _exact(matrix)
    for one, (gate, up, down) in zip(experts, matrices_of_experts, strict=True):
        one.matrices = (_exact(gate), _exact(up), _exact(down))
    try:
        yield
    finally:
        for layer, matrix in zip(layers, held, strict=True):
            layer.matrix = matrix
        for one, matrices in zip(experts, matrices_of_experts, strict=True):
            one.matrices = matrices


def _exact(matrix: Matrix) -> Matrix:
    return replace(matrix, activation_bits=16)


def with_int8_activations(matrix: Matrix) -> Matrix | None:
    """The same weight, multiplied with activations of 8 bits; None for other formats, blocks and processors."""
    if not has_int8_activations() or matrix.format == "bfloat16":
        return None
    if matrix.values is None:
        return replace(matrix, activation_bits=8)
    if matrix.block % _GROUP and matrix.block != _GROUP // 2:
        return None
    if len(matrix.values) == 16:
        levels, unit = _levels(matrix.values)
        return replace(matrix, levels=levels, unit=unit, activation_bits=8)
    are_integers = torch.equal(matrix.values, torch.arange(256) - float(_OFFSET))
    return replace(matrix, activation_bits=8) if are_integers else None


def _levels(values: torch.Tensor) -> tuple[torch.Tensor, float]:
    """(16 `values` in steps of the unit, + 128, as uint8 [64]; the unit): exact for integers."""
    unit = 1.0 if torch.equal(values, values.round()) else _best_unit(values)
    levels = (values / unit).round() + _OFFSET
    return levels.to(torch.uint8).repeat(_COPIES), unit


def _best_unit(values: torch.Tensor) -> float:
    units = values.abs().max() / torch.arange(64, 127.01, 1 / 16)
    steps = values / units[:, None]
    errors = torch.linalg.vector_norm((steps - steps.round()) * units[:, None], dim=1)
    return float(units[errors.argmin()])
