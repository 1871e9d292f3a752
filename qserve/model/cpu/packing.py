"""Numbers of a weight as files store them, and the panels that products read (packing.c, matrix.h)."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from enum import IntEnum

import torch

from qserve.errors import QserveError
from qserve.model.cpu.build import library
from qserve.model.cpu.huge_pages import empty_bytes

__all__ = ["PANEL", "Form", "Numbers", "packed"]

PANEL = 32
"""Outputs that lie together (matrix.h)."""
_WORD_BYTES = 4
# Where AutoAWQ's gemm layout keeps each of eight outputs of a word.
_AWQ_PLACES = (0, 4, 1, 5, 2, 6, 3, 7)


class Form(IntEnum):
    """What 32 bits hold (packing.c): numbers of inputs that follow each other, the first in the lowest bits."""

    BFLOAT16 = 0
    SIGNED = 1
    """4 of 8 bits with a sign."""
    BYTES = 2
    """4 of 8 bits."""
    CODES = 3
    """8 of 4 bits."""
    PAIRS = 4
    """8 of 4 bits, of each byte the upper half first."""
    OUTPUTS = 5
    """8 of 4 bits of eight outputs, in AWQ's order."""


_BITS = {Form.BFLOAT16: 16, Form.SIGNED: 8, Form.BYTES: 8, Form.CODES: 4, Form.PAIRS: 4, Form.OUTPUTS: 4}


class _CNumbers(ctypes.Structure):
    _fields_ = (
        ("at", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("form", "out", "in_", "out_step", "in_step")),
        ("order", ctypes.c_void_p),
    )


@dataclass(frozen=True)
class Numbers:
    """The numbers of a weight [out, in], not unpacked.

    Attributes:
        words: [out, any], int32 in any strides, or what is smaller side by side; of OUTPUTS int32 [in, out / 8].
        shape: (out, in); words may hold more at their end.
        order: int32 [in], the input whose numbers come at each place; None: in order.

    Raises ValueError where `words` are fewer than `shape` says.

    """

    words: torch.Tensor
    form: Form
    shape: tuple[int, int]
    order: torch.Tensor | None = None

    def __post_init__(self) -> None:
        outer, inner = self.shape[::-1] if self.form == Form.OUTPUTS else self.shape
        if len(self.words) < outer or 8 * self.words.itemsize * self.words.shape[1] < inner * self.bits:
            raise ValueError(f"{list(self.words.shape)} words of {self.bits} bits for {list(self.shape)} weights")

    @classmethod
    def of_bytes(cls, codes: torch.Tensor) -> Numbers:
        """Of uint8 [out, in]."""
        return cls(codes.contiguous(), Form.BYTES, (codes.shape[0], codes.shape[1]))

    @classmethod
    def of_nibbles(cls, codes: torch.Tensor) -> Numbers:
        """Of uint8 [out, in] below 16, an even number of inputs."""
        return cls(codes[:, ::2] | codes[:, 1::2] << 4, Form.CODES, (codes.shape[0], codes.shape[1]))

    @property
    def bits(self) -> int:
        """Of a number."""
        return _BITS[self.form]

    def unpacked(self) -> torch.Tensor:
        """uint8 [out, in] of numbers without a sign, by torch alone."""
        out, width = self.shape
        numbers = self.words.clone(memory_format=torch.contiguous_format).view(torch.uint8)
        if self.bits == 4:
            halves = [numbers & 15, numbers >> 4]
            numbers = torch.stack(halves[::-1] if self.form == Form.PAIRS else halves, -1).flatten(1)
        if self.form == Form.OUTPUTS:
            numbers = numbers.view(len(numbers), -1, 8)[..., _AWQ_PLACES].flatten(1).mT
        numbers = numbers[:out, :width]
        return numbers if self.order is None else numbers[:, self.order.long()]


def packed(numbers: Numbers) -> torch.Tensor:
    """uint8 of whole panels, at a cache line. Rows have to be whole words, and outputs of OUTPUTS whole eights."""
    out, width = numbers.shape
    words, order = numbers.words, numbers.order
    panels = empty_bytes(-(-out // PANEL) * PANEL * width * numbers.bits // 8)
    if numbers.form == Form.OUTPUTS:
        words = words.contiguous()
        along, across = 4 * words.stride(0), 0
    else:
        words = words if words.itemsize == _WORD_BYTES or words.stride(1) == 1 else words.contiguous()
        across, along = words.itemsize * words.stride(0), _WORD_BYTES * words.stride(1)
    described = _CNumbers(
        words.data_ptr(), int(numbers.form), out, width, across, along, None if order is None else order.data_ptr()
    )
    _compiled().pack_numbers(ctypes.byref(described), ctypes.c_void_p(panels.data_ptr()))
    return panels


def _compiled() -> ctypes.CDLL:
    found = library()
    if found is None:
        raise QserveError("there is no compiled library")  # a mistake of ours: the caller asks first
    return found
