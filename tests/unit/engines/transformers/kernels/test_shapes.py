"""Rows are padded to few counts, and the planner knows how many those are."""

from __future__ import annotations

from qserve.engines.transformers.kernels.shapes import MAX_KERNELS, num_row_counts, padded_length


def test_as_many_counts_as_are_said() -> None:
    for most in (1, 2, 3, 9, 64, 65, 300, 1024, 1025, 8192):
        assert num_row_counts(most) == len({padded_length(length) for length in range(1, most + 1)}), most


def test_a_dense_models_kernels_are_all_kept() -> None:
    """Six shapes of matrices: where kernels come and go the heap gets holes."""
    assert 6 * num_row_counts(1024) <= MAX_KERNELS


def test_padding_costs_little() -> None:
    for length in range(1, 8193):
        padded = padded_length(length)
        assert length <= padded <= max(8, length + length // 3)
        assert padded_length(padded) == padded
    assert sum(padded_length(length) for length in range(9, 1025)) < 1.06 * sum(range(9, 1025))
