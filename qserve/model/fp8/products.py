"""Ways to multiply by a weight in fp8, and which one is taken: by rows, as tried on the card.

torch's own product has rows in fp8 as well: with a scale a row beside weights that have one a row, and with a scale for
128 inputs of a row beside weights in blocks of 128 × 128. The other two leave rows in 16 bit. None waits for the card.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from qserve.engines.transformers.kernels.quantized_products import row_tile_of
from qserve.model.cuda.products import BY_PIECES, KERNEL, Key, Product, by_pieces
from qserve.model.cuda.weights import Weight
from qserve.model.fp8.weight import CODES, LARGEST, ROWS, Fp8Weight

__all__ = ["CHOSEN", "MANY", "PRODUCTS", "SCALED", "by_scales", "candidates", "key_of", "multiply", "rounded"]

SCALED = "torch's scaled product"
MANY = 0
"""In a key, more rows than a kernel takes."""

CHOSEN: dict[Key, str] = {}
"""Which product is taken: filled at start (`trial.py`); what is not there is unpacked by pieces."""

_SIDE = 128
_STEP = 16  # torch's products take matrices whose sides it divides
_BLOCK_STEP = 4  # of blocks: rows, and columns of scales, come in as many (cuBLASLt; vllm#49932, pytorch#166752)
_LEAST_SCALE = 1e-12


def multiply(x: torch.Tensor, weight: Fp8Weight, bias: torch.Tensor | None) -> torch.Tensor:
    """`x` [..., inputs] times the transposed weight, and `bias`: [..., outputs] in the dtype of `x`."""
    rows = x.reshape(-1, weight.inputs).contiguous()
    name = CHOSEN.get(key_of(len(rows), weight), BY_PIECES)
    return PRODUCTS[name](rows, weight, bias).view(*x.shape[:-1], weight.outputs)


def key_of(num_rows: int, weight: Weight) -> Key:
    """What a choice depends on."""
    assert isinstance(weight, Fp8Weight)
    tile = row_tile_of(num_rows) or MANY
    return str(weight.codes.device), weight.kind, weight.outputs, weight.inputs, tile


def candidates(outputs: int, inputs: int, block: tuple[int, int], num_rows: int) -> Iterator[str]:
    """Products to be tried for a weight of this shape and so many rows, by name."""
    if row_tile_of(num_rows) is not None:
        yield KERNEL
    if _takes_scales(outputs, inputs, block):
        yield SCALED
    yield BY_PIECES


def _takes_scales(outputs: int, inputs: int, block: tuple[int, int]) -> bool:
    """Whether torch's product has a form for it, on some card."""
    if block == (1, inputs):
        return not outputs % _STEP and not inputs % _STEP
    return block == (_SIDE, _SIDE) and not outputs % _SIDE and not inputs % _SIDE


def by_scales(rows: torch.Tensor, weight: Weight, bias: torch.Tensor | None) -> torch.Tensor:
    """torch's product in fp8: cards of compute capability 8.9 on, and 9.0 for blocks. Raises what torch raises."""
    assert isinstance(weight, Fp8Weight)
    if weight.kind == ROWS:
        codes, scales = _codes(rows, weight.inputs)
        out = torch._scaled_mm(
            codes, weight.codes.t(), scales, weight.scales.view(1, -1), out_dtype=rows.dtype, use_fast_accum=True
        )
    else:
        out = _by_blocks(rows, weight)
    return out if bias is None else out.add_(bias.to(out.dtype))


def _by_blocks(rows: torch.Tensor, weight: Fp8Weight) -> torch.Tensor:
    """Scales of rows lie column by column, those of the weight in columns that are padded, as torch asks for it."""
    from torch.nn.functional import ScalingType, scaled_mm

    missing = -len(rows) % _BLOCK_STEP
    padded = torch.nn.functional.pad(rows, (0, 0, 0, missing)) if missing else rows
    codes, scales = _codes(padded, _SIDE)
    of_weight = torch.nn.functional.pad(weight.scales, (0, -weight.scales.shape[1] % _BLOCK_STEP))
    out = scaled_mm(
        codes,
        weight.codes.t(),
        scales.t().contiguous().t(),
        ScalingType.BlockWise1x128,
        of_weight.t(),
        ScalingType.BlockWise128x128,
        output_dtype=rows.dtype,
    )
    return out[: len(rows)]


def _codes(rows: torch.Tensor, columns: int) -> tuple[torch.Tensor, torch.Tensor]:
    """`rows` in fp8, and float32 [rows, blocks of `columns`]."""
    blocks = rows.view(len(rows), -1, columns)
    scales = blocks.abs().amax(2).float().clamp(min=_LEAST_SCALE) / LARGEST
    # A quotient may be half a step of 16 bits above the largest code, which it is rounded to.
    parts = torch.mul(blocks, scales.reciprocal()[:, :, None], out=torch.empty_like(blocks))
    return parts.to(CODES).view(rows.shape), scales


def rounded(rows: torch.Tensor, weight: Fp8Weight) -> torch.Tensor:
    """What `by_scales` takes `rows` for, in float32."""
    columns = weight.inputs if weight.kind == ROWS else _SIDE
    codes, scales = _codes(rows, columns)
    return (codes.float().view(len(rows), -1, columns) * scales[:, :, None]).view(rows.shape)


def _by_kernel(rows: torch.Tensor, weight: Weight, bias: torch.Tensor | None) -> torch.Tensor:
    from qserve.model.fp8 import triton_product

    assert isinstance(weight, Fp8Weight)
    return triton_product.product(rows, weight, bias)


PRODUCTS: dict[str, Product] = {KERNEL: _by_kernel, SCALED: by_scales, BY_PIECES: by_pieces}
