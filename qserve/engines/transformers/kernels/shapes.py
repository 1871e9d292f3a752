"""Few row counts for matrix products on a CPU, and how many kernels they make.

oneDNN keeps a kernel for each shape of a product that it meets, at 0.7 MB each and up to 1,024 of them. Prompts come in
any length and steps with any number of sequences: after ten minutes of mixed requests the kernels held 0.8 GB. So rows
are padded to one of a few counts, and the plan says how many kernels are kept.
"""

from __future__ import annotations

from functools import cache

__all__ = ["MAX_KERNELS", "num_row_counts", "padded_length"]

MAX_KERNELS = 256
"""Kernels that oneDNN keeps; the least recently used is forgotten first. More than a dense model's few shapes make: a
new one takes 1 to 2 ms, and where they come and go the heap gets holes (docs/results/log/workers.md)."""

# (up to so many rows, multiples of): a product of 1 to 8 rows takes as long as one row, whose time is the weights'
# (bench/packed_linear.py); beyond, the padding costs at most a quarter and 5 % on average.
_STEPS = ((2, 1), (4, 2), (32, 4), (64, 8), (256, 16), (1024, 64))
_LAST_STEP = 256


def padded_length(length: int) -> int:
    """The row count that `length` rows are padded to: 1, 2, 4, 8, 12 … 32, 40 … 64, 80 … 256, 320 … 1024, 1280 …"""
    step = next((multiple for most, multiple in _STEPS if length <= most), _LAST_STEP)
    return -(-length // step) * step


@cache
def num_row_counts(most: int) -> int:
    """How many different counts 1 to `most` rows are padded to."""
    count, below = 0, 0
    for limit, multiple in (*_STEPS, (most, _LAST_STEP)):
        limit = min(limit, most)
        count += -(-max(0, limit - below) // multiple)
        below = max(below, limit)
    return count
