"""Rows of a step by their kind (`row_ranges`)."""

from __future__ import annotations

import pytest
import torch

from qserve.model.cpu.layers import row_ranges


@pytest.mark.parametrize(
    ("decoding", "tokens", "chosen", "ranges"),
    [
        ([], 5, None, [[0, 5, 1]]),
        ([0, 1, 2], 3, None, [[0, 3, 0]]),
        ([0, 1], 7, None, [[0, 2, 0], [2, 7, 1]]),
        ([0, 4], 6, None, [[0, 1, 0], [1, 4, 1], [4, 5, 0], [5, 6, 1]]),
        ([0, 1], 7, [0, 1, 4, 6], [[0, 2, 0], [2, 4, 1]]),
        ([3], 7, [2, 3, 6], [[0, 1, 1], [1, 2, 0], [2, 3, 1]]),
        ([], 7, [6], [[0, 1, 1]]),
    ],
)
def test_each_row_is_in_a_range_of_its_kind(
    decoding: list[int], tokens: int, chosen: list[int] | None, ranges: list[list[int]]
) -> None:
    found = row_ranges(
        torch.tensor(decoding, dtype=torch.int64), tokens, None if chosen is None else torch.tensor(chosen)
    )

    assert found.tolist() == ranges
    assert found.is_contiguous()
    assert found.dtype == torch.int64
