"""Three ways to multiply by a weight in 8 or 4 bits on a card, and which one is taken: by rows, as tried on the card.

None waits for the card, none has a shape that depends on values, so all can be captured in a CUDA graph.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from qserve.engines.transformers.kernels.quantized_products import LIBRARY_ROWS, piece_rows, row_tile_of
from qserve.model.cuda.weights import INT8, FourBitWeight, Weight

__all__ = [
    "BY_PIECES",
    "CHOSEN",
    "KERNEL",
    "LIBRARY",
    "PRODUCTS",
    "REFUSED",
    "Key",
    "Product",
    "by_pieces",
    "by_rows",
    "key_of",
]

Product = Callable[[torch.Tensor, Weight, torch.Tensor | None], torch.Tensor]
"""`rows` [rows, inputs], contiguous, weight and bias to [rows, outputs] in the dtype of `rows`."""

KERNEL = "Triton's kernel"
LIBRARY = "bitsandbytes' kernel"
BY_PIECES = "unpacked by pieces"

Key = tuple[str, str, int, int, int]
"""Device, kind of weight, outputs, inputs, and the tile of rows."""

CHOSEN: dict[Key, str] = {}
"""Which product few rows take: filled at start (`trial.py`); what is not there is taken by `_untried`."""

REFUSED: dict[Key, str] = {}
"""Why our kernel is not taken, where the card refused it; filled at start, like `CHOSEN`."""


def by_rows(rows: torch.Tensor, weight: Weight, bias: torch.Tensor | None) -> torch.Tensor:
    """The one that was chosen for so many rows."""
    key = key_of(rows, weight)
    name = BY_PIECES if key is None else CHOSEN.get(key) or _untried(rows, weight)
    return PRODUCTS[name](rows, weight, bias)


def key_of(rows: torch.Tensor, weight: Weight) -> Key | None:
    """None for many rows, of which nothing is tried."""
    tile = row_tile_of(len(rows))
    return None if tile is None else (str(rows.device), weight.kind, weight.outputs, weight.inputs, tile)


def by_pieces(rows: torch.Tensor, weight: Weight, bias: torch.Tensor | None) -> torch.Tensor:
    """One piece of the weight after the other in the dtype of `rows`, and torch's product: two launches a piece."""
    num = piece_rows(weight.outputs, weight.inputs, rows.element_size())
    scratch = rows.new_empty(num, weight.inputs)
    out = rows.new_empty(len(rows), weight.outputs)
    for start in range(0, weight.outputs, num):
        piece = scratch[: min(num, weight.outputs - start)]
        weight.unpack(start, piece)
        target = out[:, start : start + len(piece)]
        if bias is None:
            torch.mm(rows, piece.t(), out=target)
        else:
            torch.addmm(bias[start : start + len(piece)].to(rows.dtype), rows, piece.t(), out=target)
    return out


def _untried(rows: torch.Tensor, weight: Weight) -> str:
    """What needs no trial."""
    return LIBRARY if weight.kind != INT8 and len(rows) <= LIBRARY_ROWS else BY_PIECES


def _by_kernel(rows: torch.Tensor, weight: Weight, bias: torch.Tensor | None) -> torch.Tensor:
    from qserve.model.cuda import triton_products

    return triton_products.product(rows, weight, bias)


def _by_library(rows: torch.Tensor, weight: Weight, bias: torch.Tensor | None) -> torch.Tensor:
    """bitsandbytes' product of 4 bits, which reads them as they are, or unpacks the whole weight: by rows and card.

    It takes one offset of nested scales, so weights that lie behind each other are multiplied by one after the other.
    """
    assert isinstance(weight, FourBitWeight), f"bitsandbytes' product of {weight.kind} waits for the card"
    parts = weight.parts
    if len(parts) == 1:
        return _by_one_offset(rows, weight, bias)
    added = [None] * len(parts) if bias is None else torch.split(bias, list(weight.part_rows))
    return torch.cat([_by_one_offset(rows, *one) for one in zip(parts, added, strict=True)], dim=-1)


def _by_one_offset(rows: torch.Tensor, weight: FourBitWeight, bias: torch.Tensor | None) -> torch.Tensor:
    scales, nested = (weight.scales, {}) if weight.nested is None else _nested(weight)
    answer: torch.Tensor = torch.ops.bitsandbytes.gemm_4bit(
        rows,
        weight.packed.view(-1, 1),
        [weight.outputs, weight.inputs],
        scales,
        weight.block,
        weight.kind,
        bias=bias,
        **nested,
    )
    return answer


def _nested(weight: FourBitWeight) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    assert weight.nested is not None
    code, scales, offsets = weight.nested
    return scales, {"absmax_8bit": weight.scales, "absmax_code": code, "absmax_offset": offsets[0]}


PRODUCTS: dict[str, Product] = {KERNEL: _by_kernel, LIBRARY: _by_library, BY_PIECES: by_pieces}
