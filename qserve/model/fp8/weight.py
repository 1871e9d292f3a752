"""A weight in fp8, what it is as numbers, and how a weight in 16 bits becomes one: on any device, by torch alone."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from qserve.engines.transformers.kernels.quantized_products import piece_rows

__all__ = ["BLOCKS", "CODES", "LARGEST", "ROWS", "Fp8Weight", "block_of", "quantized_rows"]

CODES = torch.float8_e4m3fn
LARGEST = torch.finfo(CODES).max
BLOCKS = "fp8 in blocks"
ROWS = "fp8 in rows"
_LEAST_SCALE = 1e-12  # a row of zeros is divided by it


@dataclass(frozen=True, eq=False)
class Fp8Weight:
    """See `cuda.weights.Weight`.

    Attributes:
        codes: float8_e4m3fn [outputs, inputs].
        scales: float32, one for each `block` of rows and columns; the last of each may be cut off.
        block: (rows, columns): (1, inputs) of one scale a row, (128, 128) of Qwen's checkpoints.

    """

    codes: torch.Tensor
    scales: torch.Tensor
    block: tuple[int, int]

    @property
    def kind(self) -> str:
        """`ROWS` where a row has one scale, else `BLOCKS`."""
        return ROWS if self.block == (1, self.inputs) else BLOCKS

    @property
    def outputs(self) -> int:
        """See `Weight`."""
        return self.codes.shape[0]

    @property
    def inputs(self) -> int:
        """See `Weight`."""
        return self.codes.shape[1]

    def unpack(self, start: int, out: torch.Tensor) -> None:
        """See `Weight`: a code is exact in 16 bits, and its product by the scale is rounded once."""
        out.copy_(self.codes[start : start + len(out)])
        scales, columns = self._of_rows(start, len(out)), self.block[1]
        whole = self.inputs - self.inputs % columns
        if whole:
            out[:, :whole].view(len(out), -1, columns).mul_(scales[:, : whole // columns, None])
        if whole < self.inputs:
            out[:, whole:].mul_(scales[:, -1:])

    def _of_rows(self, start: int, num: int) -> torch.Tensor:
        """[num, blocks of columns], from row `start` on."""
        size = self.block[0]
        if size == 1:
            return self.scales[start : start + num]
        first = start // size
        wide = self.scales[first : -(-(start + num) // size)].repeat_interleave(size, 0)
        return wide[start - first * size :][:num]


def block_of(codes: tuple[int, int], scales: tuple[int, ...], block: tuple[int, int] | None) -> tuple[int, int] | None:
    """Rows and columns that share one of `scales`, by the shapes; `block` is what config.json says of blocks.

    None for shapes that don't match each other.
    """
    outputs, inputs = codes
    num = 1
    for size in scales:
        num *= size
    if block is not None and scales == (-(-outputs // block[0]), -(-inputs // block[1])):
        return min(block[0], outputs), min(block[1], inputs)
    if num == outputs and scales in ((outputs,), (outputs, 1)):
        return 1, inputs
    return (outputs, inputs) if num == 1 else None


@torch.no_grad()
def quantized_rows(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Of a weight [..., outputs, inputs] its codes, and a scale a row, float32 [..., outputs, 1].

    Some rows at a time: beside the weight itself nothing of its size is in more than 8 bits.
    """
    rows = weight.reshape(-1, weight.shape[-1])
    codes = torch.empty_like(rows, dtype=CODES)
    scales = torch.empty(len(rows), 1, dtype=torch.float32, device=rows.device)
    num = piece_rows(len(rows), rows.shape[1], torch.float32.itemsize)
    for start in range(0, len(rows), num):
        piece = rows[start : start + num].float()
        scales[start : start + num] = piece.abs().amax(1, keepdim=True).clamp(min=_LEAST_SCALE) / LARGEST
        codes[start : start + num] = (piece / scales[start : start + num]).to(CODES)
    return codes.view(weight.shape), scales.view(*weight.shape[:-1], 1)
