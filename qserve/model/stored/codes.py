"""Weights of GPTQ, AWQ, compressed-tensors and FP8 checkpoints as numbers, scales and zero points: pure tensors.

Sources of the layouts: AutoGPTQ's qlinear and GPTQModel 7.5 (nn_modules/qlinear, utils/model.py:
convert_gptq_v1_to_v2_format_module), AutoAWQ's gemm (quantization/awq/utils/packing_utils.py), compressed-tensors 0.17
(compressors/pack_quantized), transformers 5.19 (integrations/finegrained_fp8.py).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch

from qserve.errors import BrokenCheckpoint
from qserve.model.cpu.packing import Form, Numbers

__all__ = ["Codes", "Parts", "awq_codes", "fp8_codes", "gptq_codes", "int8_codes", "packed_codes"]

Parts = Mapping[str, torch.Tensor]
"""The tensors of one layer by the end of their names: qweight, scales, …"""

_WORD_BITS = 32
_PIECE_ROWS = 512


@dataclass(frozen=True)
class Codes:
    """A weight [out, in]: values[code] · scale + offset, and the columns of both in the order of `numbers`.

    Attributes:
        numbers: codes, as the file has them.
        values: fp32 [16 or 256].
        scales: fp32 [out, blocks], each of in / blocks columns that follow each other.
        offsets: like `scales`, or None.

    """

    format: str
    numbers: Numbers
    values: torch.Tensor
    scales: torch.Tensor
    offsets: torch.Tensor | None = None

    @property
    def order(self) -> torch.Tensor | None:
        """int32 [in], the input that a column is of; None where they lie in that order."""
        return self.numbers.order

    def dense(self, dtype: torch.dtype) -> torch.Tensor:
        """[out, in]: computed in fp32, in which integers times their scales are exact, and rounded to `dtype` once."""
        codes = self.numbers.unpacked()
        pieces = [self._rows(codes, slice(i, i + _PIECE_ROWS)).to(dtype) for i in range(0, len(codes), _PIECE_ROWS)]
        weight = torch.cat(pieces)
        return weight if self.order is None else torch.empty_like(weight).index_copy_(1, self.order.long(), weight)

    def _rows(self, every: torch.Tensor, rows: slice) -> torch.Tensor:
        codes = every[rows]
        block = codes.shape[1] // self.scales.shape[1]
        weight = self.values[codes.int()] * self.scales[rows].repeat_interleave(block, 1)
        return weight if self.offsets is None else weight + self.offsets[rows].repeat_interleave(block, 1)


def gptq_codes(parts: Parts, has_low_zeros: bool) -> Codes:
    """qweight int32 [in · bits / 32, out], qzeros [groups, out · bits / 32], scales [groups, out], g_idx [in].

    `has_low_zeros`: zero points are stored one too low, as a word of 32 bits (the first format, `checkpoint_format`
    gptq); in gptq_v2 they are stored as they are.
    """
    g_idx, scales = parts["g_idx"], parts["scales"].float().mT
    width = len(g_idx)
    bits = _WORD_BITS * len(parts["qweight"]) // width
    words = parts["qzeros"] + _ones(bits) if has_low_zeros else parts["qzeros"]
    zeros = _words(words, bits, (len(words), len(scales))).unpacked().mT
    return _integers(_words(parts["qweight"].mT, bits, (parts["qweight"].shape[1], width)), scales, zeros, g_idx)


def awq_codes(parts: Parts) -> Codes:
    """qweight int32 [in, out / 8], qzeros [groups, out / 8], scales [groups, out], with no zeros off by one."""
    codes, zeros = (
        Numbers(words, Form.OUTPUTS, (8 * words.shape[1], len(words))) for words in (parts["qweight"], parts["qzeros"])
    )
    return _integers(codes, parts["scales"].float().mT, zeros.unpacked())


def packed_codes(parts: Parts) -> Codes:
    """compressed-tensors' pack-quantized: weight_packed int32 [out, in · bits / 32], weight_scale [out, groups].

    weight_zero_point int32 [out · bits / 32, groups], where there is one; weight_g_idx [in] where groups are mixed.
    """
    out, width = (int(size) for size in parts["weight_shape"])
    words = parts["weight_packed"]
    bits = 4 if words.shape[1] == math.ceil(width / 8) else 8
    scales = parts["weight_scale"].float()
    scales = scales.reshape(-1, 1) if scales.dim() < 2 else scales
    zeros = None
    if "weight_zero_point" in parts:
        stored = parts["weight_zero_point"].mT
        zeros = _words(stored, bits, (len(stored), out)).unpacked().mT
    return _integers(_words(words, bits, (out, width)), scales.expand(out, -1), zeros, parts.get("weight_g_idx"))


def int8_codes(parts: Parts) -> Codes:
    """compressed-tensors' int-quantized: weight int8 [out, in], weight_scale and weight_zero_point [out, 1] or [1]."""
    weight = parts["weight"]
    codes = Numbers.of_bytes(weight.view(torch.uint8) ^ 128)
    scales = parts["weight_scale"].float().reshape(-1, 1).expand(len(weight), 1)
    zeros = parts.get("weight_zero_point")
    if zeros is not None:
        zeros = zeros.reshape(-1, 1).expand(len(weight), 1).int() + 128
    return _integers(codes, scales, zeros)


def fp8_codes(parts: Parts, block: tuple[int, int] | None) -> Codes:
    """weight in fp8 [out, in] times weight_scale_inv or weight_scale: one number, one a row, or one a block."""
    weight = parts["weight"]
    out, width = weight.shape
    scales = next(parts[name] for name in ("weight_scale_inv", "weight_scale") if name in parts).float()
    if block is not None and scales.shape == (math.ceil(out / block[0]), math.ceil(width / block[1])):
        by_row, size = scales.repeat_interleave(block[0], 0)[:out], block[1]
    elif scales.numel() in (1, out):
        by_row, size = scales.reshape(-1, 1).expand(out, 1), width
    else:
        raise BrokenCheckpoint(
            f"scales of shape {list(scales.shape)} don't match an fp8 weight {[out, width]} in blocks of {block}"
        )
    values = torch.arange(256, dtype=torch.uint8).view(weight.dtype).float()
    return Codes("fp8", Numbers.of_bytes(weight.view(torch.uint8)), values, _by_block(by_row, width, size))


def _integers(
    codes: Numbers, scales: torch.Tensor, zeros: torch.Tensor | None, g_idx: torch.Tensor | None = None
) -> Codes:
    """(code - zero) · scale; `zeros` [out, groups] are in the numbers of `codes`, None: in their middle."""
    bits = codes.bits
    half = 1 << bits - 1
    offsets = None if zeros is None or bool((zeros == half).all()) else (half - zeros.float()) * scales
    (out, width), groups = codes.shape, scales.shape[1]
    if len(scales) != out:
        raise BrokenCheckpoint(f"it has scales of {len(scales)} outputs, but {out} outputs")
    size = math.ceil(width / groups)
    if g_idx is not None:
        codes = replace(codes, order=_order(g_idx, size))
    values = torch.arange(1 << bits, dtype=torch.float32) - half
    offsets = None if offsets is None else _by_block(offsets, width, size)
    return Codes(f"int{bits}", codes, values, _by_block(scales, width, size), offsets)


def _order(g_idx: torch.Tensor, size: int) -> torch.Tensor | None:
    """Inputs by group, where these are out of order; -1 means that nobody gave them one. Raises BrokenCheckpoint."""
    in_order = torch.arange(len(g_idx)) // size
    if bool((g_idx < 0).any()) or torch.equal(g_idx.long(), in_order):
        return None
    order = g_idx.argsort(stable=True)
    if not torch.equal(g_idx[order].long(), in_order):
        raise BrokenCheckpoint(f"g_idx has groups that are not of {size} inputs: is group_size of another model?")
    return order.int()


def _by_block(scales: torch.Tensor, width: int, size: int) -> torch.Tensor:
    """[out, groups] for groups of `size` inputs, the last one cut off, to groups of a size that divides `width`."""
    step = math.gcd(size, width)
    return scales[:, torch.arange(0, width, step) // size].contiguous()


def _words(words: torch.Tensor, bits: int, shape: tuple[int, int]) -> Numbers:
    """int32 [rows, n], the lowest bits of a word first."""
    return Numbers(words, Form.CODES if bits == 4 else Form.BYTES, shape)


def _ones(bits: int) -> int:
    """1 in each of the numbers of a word."""
    return sum(1 << place for place in range(0, _WORD_BITS, bits))
