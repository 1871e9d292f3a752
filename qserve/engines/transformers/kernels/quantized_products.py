"""How a card multiplies by weights that bitsandbytes holds, by the number of rows; used by engine, planner and doctor.

Weights alone are in 8 or 4 bits: rows stay in 16. Few rows, as decoding has them, read each weight once, as it is
held. Many rows, as prompts have them, unpack a piece of the weight after the other into 16 bit and multiply by that.
"""

from __future__ import annotations

from qserve.units import MIB

__all__ = [
    "LIBRARY_ROWS",
    "ROW_TILES",
    "SCRATCH_BYTES",
    "experts_row_bytes",
    "experts_rows",
    "piece_rows",
    "read_bytes",
    "row_tile_of",
    "scratch_bytes",
]

ROW_TILES = (1, 16, 32, 64)
"""What few rows are padded to in a kernel; more than the largest are many."""

LIBRARY_ROWS = 4
"""Up to here bitsandbytes reads 4 bits a number on every card. Source: 0.50, cuda/ops.py, _GEMM_4BIT_CUSTOM_FLOOR_M."""

SCRATCH_BYTES = 64 * MIB
"""Of a weight that is in 16 bit at once. A piece of 6,553 rows of 5,120 keeps a card's matrix units busy."""

_EXPERTS_BYTES = 128 * MIB
"""Between the products of a layer's experts. As many rows of 30B-A3B are 186 an expert, for which an H100 computes as
long as it reads the experts: 2 · 186 operations a byte, and 989 TFLOP/s over 3.35 TB/s are 295."""


def row_tile_of(num_rows: int) -> int | None:
    """What `num_rows` are padded to; None for many."""
    return next((tile for tile in ROW_TILES if num_rows <= tile), None)


def piece_rows(outputs: int, inputs: int, element_bytes: int) -> int:
    """Rows of a weight [outputs, inputs] that are unpacked at once."""
    return min(outputs, max(1, SCRATCH_BYTES // (inputs * element_bytes)))


def scratch_bytes(outputs: int, inputs: int, element_bytes: int) -> int:
    """What one product by a weight [outputs, inputs] takes beside rows and answer: at most SCRATCH_BYTES and a row."""
    return piece_rows(outputs, inputs, element_bytes) * inputs * element_bytes


def read_bytes(held_bytes: int, num_elements: int, num_rows: int, element_bytes: int = 2) -> int:
    """Bytes of a weight that a product moves: as it is held, and for many rows written and read in 16 bit as well."""
    unpacked = 0 if row_tile_of(num_rows) else 2 * num_elements * element_bytes
    return held_bytes + unpacked


def experts_row_bytes(hidden: int, inner: int, top: int, element_bytes: int) -> int:
    """What a row takes between the products of a layer's experts in fp8, of which it has `top`."""
    return top * (hidden + inner) * element_bytes


def experts_rows(hidden: int, inner: int, top: int, element_bytes: int) -> int:
    """Rows that are computed at once; more read the experts again."""
    return max(1, _EXPERTS_BYTES // experts_row_bytes(hidden, inner, top, element_bytes))
