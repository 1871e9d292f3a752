"""Grouped products of experts in fp8: how rows are divided among programs, and where the products are taken.

Of the rows the host knows their number alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

__all__ = ["GROUPED", "REFUSED", "TILES", "ExpertsKey", "ExpertsShape", "GroupedWeight", "most_tiles", "tile_of"]

TILES = (16, 32, 64)
"""Rows of one expert that a program multiplies at once. More than 64 spill registers."""


@dataclass(frozen=True)
class ExpertsShape:
    """Of a layer's experts: their number, sizes, and the rows and columns that share a scale."""

    experts: int
    hidden: int
    inner: int
    gate_rows: int
    gate_columns: int
    down_rows: int
    down_columns: int


ExpertsKey = tuple[str, ExpertsShape]
"""Device and shape."""

GROUPED: dict[ExpertsKey, tuple[int, ...]] = {}
"""Of which tiles grouped products are right: filled at start (`experts_trial.py`)."""

REFUSED: dict[ExpertsKey, str] = {}
"""Why none is taken, where the card refused all of them; filled at start."""


@dataclass(frozen=True, eq=False)
class GroupedWeight:
    """Of all experts of a layer; see `Fp8Weight`.

    Attributes:
        codes: float8_e4m3fn [experts, outputs, inputs].
        scales: float32 [experts, blocks of rows, blocks of columns]. Of gate above up, each has blocks of its own.
        block: (rows, columns) that share a scale.

    """

    codes: torch.Tensor
    scales: torch.Tensor
    block: tuple[int, int]

    @property
    def experts(self) -> int:
        """How many."""
        return self.codes.shape[0]

    @property
    def outputs(self) -> int:
        """Of an expert; of gate and up together."""
        return self.codes.shape[1]

    @property
    def inputs(self) -> int:
        """Of an expert."""
        return self.codes.shape[2]


def tile_of(num_pairs: int, num_experts: int, tiles: tuple[int, ...] = TILES) -> int:
    """The largest of `tiles` that the rows of an expert fill in the mean; the smallest where they fill none.

    `num_pairs`: rows, each as often as it has experts.
    """
    return max((tile for tile in tiles if tile * num_experts <= num_pairs), default=min(tiles))


def most_tiles(num_pairs: int, num_experts: int, tile: int) -> int:
    """As many as any routing has: each expert that is hit may have one that is not full."""
    hit = min(num_pairs, num_experts)
    return hit + (num_pairs - hit) // tile
