"""Weights as bitsandbytes holds them, and what they are as numbers: on any device, by torch's operations."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import Any, Protocol

import torch

__all__ = ["INT8", "FourBitWeight", "Int8Weight", "Weight", "has_whole_blocks", "quantized_weight_of"]

INT8 = "int8"
_INT8_RANGE = 127
# bitsandbytes quantizes the scales of 4-bit blocks in blocks of 256; its products take no others.
_SCALE_BLOCK = 256


class Weight(Protocol):
    """A weight [outputs, inputs]."""

    @property
    def kind(self) -> str:
        """`int8`, `nf4` or `fp4`."""
        ...

    @property
    def outputs(self) -> int:
        """Rows."""
        ...

    @property
    def inputs(self) -> int:
        """Columns."""
        ...

    def unpack(self, start: int, out: torch.Tensor) -> None:
        """Write the numbers of the rows from `start` on into `out` [rows, inputs], in its dtype."""


@dataclass(frozen=True, eq=False)
class Int8Weight:
    """LLM.int8: `codes` int8 [outputs, inputs], `scales` float32 [outputs], what a code of one stands for."""

    codes: torch.Tensor
    scales: torch.Tensor

    @property
    def kind(self) -> str:
        """See `Weight`."""
        return INT8

    @property
    def outputs(self) -> int:
        """See `Weight`."""
        return self.codes.shape[0]

    @property
    def inputs(self) -> int:
        """See `Weight`."""
        return self.codes.shape[1]

    def unpack(self, start: int, out: torch.Tensor) -> None:
        """See `Weight`: one launch, rounded once."""
        rows = slice(start, start + len(out))
        torch.mul(self.codes[rows], self.scales[rows, None], out=out)


@dataclass(frozen=True, eq=False)
class FourBitWeight:
    """NF4 or FP4.

    Attributes:
        kind: `nf4` or `fp4`.
        packed: uint8 [outputs · inputs / 2], row by row; a byte holds two codes, the first one in its upper half.
        code: float32 [16], what a code stands for beside a scale of one.
        scales: of blocks of codes: float32 [blocks], or uint8 where they are quantized themselves.
        nested: of quantized scales: what each of the 256 stands for, the scales of their blocks, and float32 [parts],
            what is added.
        block: codes that share a scale; divides `inputs`.
        inputs: columns.
        part_rows: rows of each part, where weights lie behind each other whose nested scales have offsets of their
            own; each has whole blocks of scales. Empty: all is one.

    """

    kind: str
    packed: torch.Tensor
    code: torch.Tensor
    scales: torch.Tensor
    nested: tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None
    block: int
    inputs: int
    part_rows: tuple[int, ...] = ()

    @property
    def outputs(self) -> int:
        """See `Weight`."""
        return 2 * self.packed.numel() // self.inputs

    @property
    def later_starts(self) -> tuple[int, ...]:
        """First rows of the parts behind the first one."""
        return tuple(accumulate(self.part_rows[:-1]))

    @property
    def parts(self) -> list[FourBitWeight]:
        """Weights of one offset each: this one, or views of it."""
        if self.nested is None or not self.later_starts:
            return [self]
        code, wide, offsets = self.nested
        blocks = self.inputs // self.block
        found = []
        for index, (start, end) in enumerate(pairwise((0, *self.later_starts, self.outputs))):
            packed = self.packed[start * self.inputs // 2 : end * self.inputs // 2]
            scales = slice(start * blocks, end * blocks)
            outer = slice(scales.start // _SCALE_BLOCK, scales.stop // _SCALE_BLOCK)
            nested = code, wide[outer], offsets[index : index + 1]
            found.append(replace(self, packed=packed, scales=self.scales[scales], nested=nested, part_rows=()))
        return found

    def unpack(self, start: int, out: torch.Tensor) -> None:
        """See `Weight`."""
        rows, blocks = len(out), self.inputs // self.block
        pairs = self.packed[start * self.inputs // 2 : (start + rows) * self.inputs // 2]
        scales = self._block_scales(start * blocks, (start + rows) * blocks)
        if pairs.is_cuda:
            torch.ops.bitsandbytes.dequantize_4bit.out(
                pairs, scales, self.block, self.kind, [rows, self.inputs], out.dtype, out=out
            )
            return
        codes = torch.stack([pairs >> 4, pairs & 15], dim=-1).view(-1, self.block)
        out.copy_((self.code[codes.int()] * scales[:, None]).view(rows, self.inputs))

    def _block_scales(self, start: int, end: int) -> torch.Tensor:
        """float32, of the blocks from `start` to `end`."""
        if self.nested is None:
            return self.scales[start:end]
        code, scales, offsets = self.nested
        places = torch.arange(start, end, device=scales.device)
        added = offsets[0]
        for first, own in zip(self.later_starts, offsets[1:], strict=False):
            added = torch.where(places < first * (self.inputs // self.block), added, own)
        return code[self.scales[start:end].int()] * scales[places // _SCALE_BLOCK] + added


def has_whole_blocks(outputs: int, inputs: int, block: int) -> bool:
    """Whether the nested scales of such a weight fill their blocks, so that another's can lie behind them."""
    return outputs * inputs % (block * _SCALE_BLOCK) == 0


def quantized_weight_of(linear: Any) -> Weight | None:
    """What bitsandbytes' `linear` holds, by no copy; None for other layers, and for forms that no product takes."""
    name = type(linear).__name__
    if name == "Linear8bitLt":
        return _int8(linear)
    return _four_bit(linear) if name == "Linear4bit" else None


def _int8(linear: Any) -> Int8Weight | None:
    """bitsandbytes keeps scales beside the weight, and moves both to `state` in the first call."""
    codes = linear.weight.data if linear.state.CB is None else linear.state.CB
    scales = getattr(linear.weight, "SCB", None)
    scales = linear.state.SCB if scales is None else scales
    if scales is None or codes.dtype != torch.int8 or codes.dim() != 2 or not codes.is_contiguous():
        return None
    return Int8Weight(codes, scales.float() / _INT8_RANGE)


def _four_bit(linear: Any) -> FourBitWeight | None:
    state = getattr(linear.weight, "quant_state", None)
    if state is None or getattr(state, "packing_format_for_cpu", False) or len(state.shape) != 2:
        return None
    inputs, block = state.shape[1], state.blocksize
    if inputs % block or (state.nested and state.state2.blocksize != _SCALE_BLOCK):
        return None
    nested = (state.state2.code, state.state2.absmax, state.offset.float().view(1)) if state.nested else None
    packed = linear.weight.data.contiguous().view(torch.uint8).flatten()
    return FourBitWeight(state.quant_type, packed, state.code, state.absmax, nested, block, inputs)
