"""bf16 weights made bitsandbytes' formats by the compiled library (quantize.c): the same numbers, without bitsandbytes.

By torch's operations bitsandbytes takes a minute for what takes this seconds, and its import brings torch's compiler.
"""

from __future__ import annotations

import ctypes
import functools

import torch

from qserve.errors import QserveError
from qserve.model.cpu.build import library
from qserve.model.cpu.matrix import Matrix, codes_matrix, int8_matrix
from qserve.model.cpu.packing import Form, Numbers

__all__ = ["BLOCK", "four_bit_weight", "int8_weight"]

BLOCK = 64
"""Inputs that share a scale in 4 bit, as bitsandbytes has them where nobody asks for another size."""
_INT8_RANGE = 127
# bitsandbytes' functional.py: get_4bit_type, create_dynamic_map.
_VALUES = {
    "nf4": (
        -1.0,
        -0.6961928009986877,
        -0.5250730514526367,
        -0.39491748809814453,
        -0.28444138169288635,
        -0.18477343022823334,
        -0.09105003625154495,
        0.0,
        0.07958029955625534,
        0.16093020141124725,
        0.24611230194568634,
        0.33791524171829224,
        0.44070982933044434,
        0.5626170039176941,
        0.7229568362236023,
        1.0,
    ),
    "fp4": (0, 0.0625, 8, 12, 4, 6, 2, 3, -0, -0.0625, -8, -12, -4, -6, -2, -3),
}
_EXPONENTS, _FRACTION_BITS = 7, 6
_STEPS = 65_535


class _CWeights(ctypes.Structure):
    """`weights` of quantize.c."""

    _fields_ = (
        ("x", ctypes.c_void_p),
        ("num", ctypes.c_int64),
        ("size", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in ("bounds", "codes", "packed", "rounded", "largest")),
    )


def four_bit_weight(weight: torch.Tensor, kind: str, *, is_nested: bool) -> Matrix | None:
    """NF4 or FP4 of bf16 `weight` [out, in], its scales quantized to 8 bits again or not.

    None for a shape that the products do not take.
    """
    out, width = weight.shape
    if width % BLOCK or weight.dtype != torch.bfloat16:
        return None
    rows, (values, bounds, codes) = weight.contiguous(), _table(kind)
    halves, scales = torch.empty(out, width // 2, dtype=torch.uint8), torch.empty(out, width // BLOCK)
    described = _CWeights(
        rows.data_ptr(),
        scales.numel(),
        BLOCK,
        bounds.data_ptr(),
        codes.data_ptr(),
        halves.data_ptr(),
        None,
        scales.data_ptr(),
    )
    _compiled().quantize_4_bit(ctypes.byref(described))
    if is_nested:
        _compiled().requantize_scales(
            ctypes.c_void_p(scales.data_ptr()),
            ctypes.c_int64(scales.numel()),
            ctypes.c_float(scales.mean().item()),
            *(ctypes.c_void_p(one.data_ptr()) for one in _dynamic_map()),
        )
    return codes_matrix(kind, Numbers(halves, Form.PAIRS, (out, width)), values, scales)


def int8_weight(weight: torch.Tensor) -> Matrix | None:
    """LLM.int8 of bf16 `weight` [out, in]: each row by its largest. None for a shape that the products do not take."""
    out, width = weight.shape
    if width % BLOCK or weight.dtype != torch.bfloat16:
        return None
    rows = weight.contiguous()
    rounded, largest = torch.empty(out, width, dtype=torch.int8), torch.empty(out)
    described = _CWeights(rows.data_ptr(), out, width, None, None, None, rounded.data_ptr(), largest.data_ptr())
    _compiled().quantize_int8(ctypes.byref(described))
    return int8_matrix(rounded, largest / _INT8_RANGE)


@functools.cache
def _table(kind: str) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(values of codes, bounds between neighbours, codes in ascending order of their values)."""
    values = torch.tensor(_VALUES[kind])
    values.div_(values.abs().max())
    order = torch.argsort(values)
    return values, (values[order[:-1]] + values[order[1:]]) / 2, order.to(torch.uint8)


@functools.cache
def _dynamic_map() -> tuple[torch.Tensor, torch.Tensor]:
    """(256 values up to 1, ascending, by powers of ten; the one that is nearest to each of 65,536 from -1 to 1)."""
    positive: list[float] = []
    for i in range(_EXPONENTS):
        bounds = torch.linspace(0.1, 1, 2 ** (i + _FRACTION_BITS + 1 - _EXPONENTS) + 1)
        positive += (10 ** (i - _EXPONENTS + 1) * ((bounds[:-1] + bounds[1:]) / 2)).tolist()
    values = torch.tensor(sorted([*positive, *(-one for one in positive), 0.0, 1.0]))
    steps = torch.arange(_STEPS + 1).float() / _STEPS * 2 - 1
    return values, torch.bucketize(steps, (values[:-1] + values[1:]) / 2).to(torch.uint8)


def _compiled() -> ctypes.CDLL:
    found = library()
    if found is None:
        raise QserveError("there is no compiled library")  # a mistake of ours: the caller asks first
    return found
