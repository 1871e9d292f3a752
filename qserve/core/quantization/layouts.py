"""The tensors that replace a linear weight [rows, columns] in a quantized checkpoint: one `Part` each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from qserve.core.quantization.stored import CheckpointQuantization

__all__ = ["BNB_4BIT", "COMPRESSED", "FP8", "GPTQ", "ROW_SCALES", "Part"]


def _always(quantization: CheckpointQuantization) -> bool:
    return True


@dataclass(frozen=True)
class Part:
    """One tensor: a number of `bits` (None: as many as the checkpoint's weights have) for each `per`.

    `per` is a weight, a group of columns of a row, a square block, a row, a column, the tensor itself, or so many
    weights that follow each other in memory. It is there where `when` is true of the checkpoint.
    """

    suffix: str
    dtype: str
    per: Literal["weight", "group", "block", "row", "column", "tensor"] | int
    bits: int | None = None
    when: Callable[[CheckpointQuantization], bool] = _always

    def num_bytes(self, rows: int, columns: int, quantization: CheckpointQuantization) -> int:
        """Of a weight [rows, columns]."""
        bits = quantization.bits if self.bits is None else self.bits
        return self._count(rows, columns, quantization) * bits // 8

    def _count(self, rows: int, columns: int, quantization: CheckpointQuantization) -> int:
        match self.per:
            case "weight":
                return rows * columns
            case "group":
                return rows * (-(-columns // quantization.group_size) if quantization.group_size else 1)
            case "block":
                edge = quantization.block or max(rows, columns)
                return -(-rows // edge) * -(-columns // edge)
            case "row":
                return rows
            case "column":
                return columns
            case "tensor":
                return 1
            case weights:
                return -(-rows * columns // weights)


GPTQ = (
    Part("qweight", "I32", "weight"),
    Part("scales", "F16", "group", 16),
    Part("qzeros", "I32", "group"),
    Part("g_idx", "I32", "column", 32),
)
COMPRESSED = (
    Part("weight_packed", "I32", "weight"),
    Part("weight_scale", "BF16", "group", 16),
    Part("weight_zero_point", "I32", "group", when=lambda how: not how.symmetric),
)
FP8 = (
    Part("weight", "F8_E4M3", "weight", 8),
    Part("weight_scale", "BF16", "row", 16, lambda how: how.per_row),
    Part("weight_scale_inv", "F32", "block", 32, lambda how: not how.per_row),
)
ROW_SCALES = Part("weight_scale", "F32", "row", 32)
_BLOCK, _NESTED_BLOCK = 64, 64 * 256
BNB_4BIT = (
    Part("weight", "U8", "weight", 4),
    Part("absmax", "U8", _BLOCK, 8, lambda how: how.double_quant),
    Part("nested_absmax", "F32", _NESTED_BLOCK, 32, lambda how: how.double_quant),
    Part("absmax", "F32", _BLOCK, 32, lambda how: not how.double_quant),
)
"""An absmax per 64 weights, in fp32 or, with double quantization, in 8 bit, with one in fp32 for 256 of them."""
