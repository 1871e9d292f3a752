"""Weights of linear layers as the compiled products read them (matrix.h), each in the format that it is stored in."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch

from qserve.errors import QserveError
from qserve.model.cpu.build import library
from qserve.model.cpu.huge_pages import empty_bytes
from qserve.model.cpu.packing import PANEL, Form, Numbers, packed

__all__ = [
    "FEW_ROWS",
    "PANEL",
    "CMatrix",
    "Matrix",
    "bfloat16_matrix",
    "codes_matrix",
    "has_fast_products",
    "has_int8_activations",
    "int8_matrix",
    "joined",
    "use_own_threads",
]

_BFLOAT16, _INT8, _CODES, _BYTES = 0, 1, 2, 3
_BITS = (16, 8, 4, 8)
_GROUP = 64  # inputs whose activations share a scale, for INT8
FEW_ROWS = 32
"""Beyond so many a processor without the instructions multiplies faster with the whole weight in bf16."""


class CMatrix(ctypes.Structure):
    """`matrix` of matrix.h."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("kind", "out", "in_", "block")),
        *((name, ctypes.c_void_p) for name in ("codes", "scales", "offsets", "values", "bias", "order", "levels")),
        ("unit", ctypes.c_float),
        ("activation_bits", ctypes.c_int32),
    )


@dataclass(frozen=True)
class Matrix:
    """A weight [out_features, in_features] and a bias or none.

    `format` names what a weight is stored as: bfloat16, int8, nf4, fp4, int4, fp8. Tensors as in matrix.h.
    """

    format: str
    kind: int
    out_features: int
    in_features: int
    codes: torch.Tensor
    scales: torch.Tensor | None = None
    offsets: torch.Tensor | None = None
    values: torch.Tensor | None = None
    bias: torch.Tensor | None = None
    order: torch.Tensor | None = None
    block: int = field(default=_GROUP)
    levels: torch.Tensor | None = None
    unit: float = 1.0
    activation_bits: int = 16

    @property
    def code_bytes(self) -> int:
        """What the weights themselves take."""
        return self.out_features * self.in_features * _BITS[self.kind] // 8

    @property
    def scale_bytes(self) -> int:
        """What belongs to them: scales, offsets, the order of the inputs."""
        return sum(part.nbytes for part in (self.scales, self.offsets, self.order) if part is not None)

    @cached_property
    def c(self) -> CMatrix:
        """For C; it holds addresses only, and must not outlive this object."""
        parts = (self.codes, self.scales, self.offsets, self.values, self.bias, self.order, self.levels)
        addresses = (None if part is None else part.data_ptr() for part in parts)
        sizes = (self.kind, self.out_features, self.in_features, self.block)
        return CMatrix(*sizes, *addresses, self.unit, self.activation_bits)

    def with_bias(self, bias: torch.Tensor | None) -> Matrix:
        """The same weight; `bias` [out] is rounded to bf16."""
        return replace(self, bias=_bf16(bias))

    def product(self, states: torch.Tensor) -> torch.Tensor:
        """`states` [rows, in_features] in bf16 to [rows, out_features], sums in fp32, rounded once."""
        rows = states.contiguous()
        if len(rows) > FEW_ROWS and not has_fast_products():
            return torch.nn.functional.linear(rows, self.dense().to(torch.bfloat16), self.bias)
        out = torch.empty(len(rows), self.out_features, dtype=torch.bfloat16)
        failed = len(rows) and _compiled().product_of(
            ctypes.byref(self.c),
            ctypes.c_void_p(rows.data_ptr()),
            ctypes.c_long(len(rows)),
            ctypes.c_void_p(out.data_ptr()),
            None,
        )
        if failed:
            raise MemoryError(f"a product of {len(rows)} rows with a weight of {self.codes.nbytes} bytes")
        return out

    @property
    def num_panels(self) -> int:
        """Of `PANEL` outputs each; the last may have fewer."""
        return -(-self.out_features // PANEL)

    def largest_of_panels(self, states: torch.Tensor) -> torch.Tensor:
        """The largest output of each panel, not rounded and without a bias: fp32 [rows, panels]; NaN where one is."""
        rows, largest = states.contiguous(), torch.empty(len(states), self.num_panels)
        failed = _compiled().largest_of_panels(
            ctypes.byref(self.c),
            ctypes.c_void_p(rows.data_ptr()),
            ctypes.c_long(len(rows)),
            ctypes.c_void_p(largest.data_ptr()),
        )
        if failed:
            raise MemoryError(f"a product of {len(rows)} rows with a weight of {self.codes.nbytes} bytes")
        return largest

    def product_of_panels(self, states: torch.Tensor, panels: torch.Tensor) -> torch.Tensor:
        """As `product` for the outputs of `panels` (int64, each once); minus infinity for all others."""
        rows, chosen = states.contiguous(), panels.contiguous()
        out = torch.full((len(rows), self.out_features), float("-inf"), dtype=torch.bfloat16)
        failed = _compiled().product_of_panels(
            ctypes.byref(self.c),
            ctypes.c_void_p(rows.data_ptr()),
            ctypes.c_long(len(rows)),
            ctypes.c_void_p(chosen.data_ptr()),
            ctypes.c_long(len(chosen)),
            ctypes.c_void_p(out.data_ptr()),
        )
        if failed:
            raise MemoryError(f"a product of {len(rows)} rows with {len(chosen)} panels of a weight")
        return out

    def dense(self) -> torch.Tensor:
        """The weight in fp32, [out_features, in_features]: what its format says."""
        weight = torch.empty(self.out_features, self.in_features)
        _compiled().dense_weight(ctypes.byref(self.c), ctypes.c_void_p(weight.data_ptr()))
        if self.order is None:
            return weight
        orders = self.order.view(-1, 1, self.in_features).long()  # one, or one an expert
        parts = weight.view(len(orders), -1, self.in_features)
        return torch.empty_like(parts).scatter_(2, orders.expand_as(parts), parts).view_as(weight)


def bfloat16_matrix(weight: torch.Tensor, bias: torch.Tensor | None = None) -> Matrix | None:
    """Of a plain weight in bf16; None for a shape that the products do not take."""
    out, width = weight.shape
    if width % 2 or weight.dtype != torch.bfloat16:
        return None
    codes = packed(Numbers(weight, Form.BFLOAT16, (out, width)))
    return Matrix("bfloat16", _BFLOAT16, out, width, codes, bias=_bf16(bias))


def int8_matrix(weight: torch.Tensor, scales: torch.Tensor, bias: torch.Tensor | None = None) -> Matrix | None:
    """Of int8 `weight` [out, in] times fp32 `scales` [out]; None for a shape that the products do not take."""
    out, width = weight.shape
    if width % _GROUP:
        return None
    codes = packed(Numbers(weight, Form.SIGNED, (out, width)))
    return Matrix("int8", _INT8, out, width, codes, _padded(scales.float().flatten()), bias=_bf16(bias))


def codes_matrix(
    format: str,  # noqa: A002 - the field's name
    codes: torch.Tensor | Numbers,
    values: torch.Tensor,
    scales: torch.Tensor,
    offsets: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    order: torch.Tensor | None = None,
) -> Matrix | None:
    """Of `codes` [out, in], uint8 or as a file has them, that index `values` [16 or 256], times `scales` [out, blocks].

    `offsets`, like `scales`, are added. 256 values have to be ones that bf16 holds. `order`, int32 [in]: the input that
    each column is of, where that is not the order of `codes` itself; None: they lie in order. None for a shape that
    the products do not take.
    """
    out, width = codes.shape
    kind = _CODES if len(values) == 1 << _BITS[_CODES] else _BYTES
    blocks = scales.shape[1]
    block = width // blocks
    if width % blocks or block % (32 // _BITS[kind]):
        return None
    if isinstance(codes, torch.Tensor):
        codes = Numbers.of_nibbles(codes) if kind == _CODES else Numbers.of_bytes(codes)
    if codes.form == Form.OUTPUTS and out % 8:
        return None
    order = codes.order if order is None else order
    added = None if offsets is None else _by_panel(offsets)
    table = _aligned(values.float().contiguous())
    return Matrix(format, kind, out, width, packed(codes), _by_panel(scales), added, table, _bf16(bias), order, block)


def joined(parts: Sequence[Matrix]) -> Matrix | None:
    """The outputs of several weights of experts one after the other; None where formats or shapes differ.

    Each has to have whole panels, and no bias. Its `order` has the inputs of each part, where one is out of order.
    """
    first = parts[0]
    kinds = {(one.format, one.kind, one.in_features, one.block) for one in parts}
    if len(kinds) > 1 or any(one.out_features % PANEL or one.bias is not None for one in parts):
        return None
    tables = [one.values.view(torch.int32) for one in parts if one.values is not None]  # bits: FP8 has a NaN
    if any(not torch.equal(tables[0], table) for table in tables):
        return None
    scales = [one.scales for one in parts if one.scales is not None]
    return replace(
        first,
        out_features=sum(one.out_features for one in parts),
        codes=torch.cat([one.codes for one in parts], out=empty_bytes(sum(one.codes.nbytes for one in parts))),
        scales=None if not scales else torch.cat(scales),
        offsets=_all_or_none([one.offsets for one in parts], lambda i: torch.zeros_like(scales[i])),
        order=_all_or_none([one.order for one in parts], lambda i: torch.arange(first.in_features, dtype=torch.int32)),
    )


def _all_or_none(given: list[torch.Tensor | None], made: Callable[[int], torch.Tensor]) -> torch.Tensor | None:
    """Joined, with what was not `given` of one `made`; None where it was given of none."""
    if all(one is None for one in given):
        return None
    return torch.cat([made(index) if one is None else one for index, one in enumerate(given)])


def use_own_threads() -> None:
    """From now on the compiled kernels compute in threads of their own, as many as torch has, in place of OpenMP's."""
    _compiled().use_threads(ctypes.c_long(torch.get_num_threads()))


def _by_panel(scales: torch.Tensor) -> torch.Tensor:
    """[out, blocks] to [panel, blocks, 32]."""
    return _padded(scales.float()).view(-1, PANEL, scales.shape[1]).transpose(1, 2).contiguous()


def _padded(rows: torch.Tensor) -> torch.Tensor:
    """With zeros up to a whole number of panels."""
    missing = -len(rows) % PANEL
    return torch.cat([rows, rows.new_zeros(missing, *rows.shape[1:])]) if missing else rows.contiguous()


def _aligned(tensor: torch.Tensor) -> torch.Tensor:
    """At a cache line, where torch's allocator puts whatever is its own."""
    return tensor if tensor.data_ptr() % 64 == 0 else tensor.clone()


def _bf16(bias: torch.Tensor | None) -> torch.Tensor | None:
    return None if bias is None else bias.detach().to(torch.bfloat16).contiguous()


def _compiled() -> ctypes.CDLL:
    found = library()
    if found is None:
        raise QserveError("there is no compiled library")  # a mistake of ours: the caller asks first
    return found


def has_fast_products() -> bool:
    """Whether our products serve many rows, too, and plain bf16."""
    return bool(_compiled().has_fast_products())


def has_int8_activations() -> bool:
    """Whether this processor multiplies activations of 8 bits (`activations.py`)."""
    return bool(_compiled().has_int8_activations())
