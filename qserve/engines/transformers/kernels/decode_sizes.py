"""Sizes of decoding steps that the transformers engine captures as CUDA graphs; used by engine and planner."""

from __future__ import annotations

__all__ = ["MAX_GRAPHS", "batch_sizes", "num_graphs", "table_width_of"]

MAX_GRAPHS = 16
"""Sizes of a batch that are captured at start: each takes a part of a second and its launches' memory."""

_SMALL = (1, 2, 4, 8)
_STEP = 8


def batch_sizes(max_num_seqs: int) -> tuple[int, ...]:
    """Batches are padded to one of these: 1, 2, 4, 8, and multiples of 8 (of more, where MAX_GRAPHS would not do)."""
    small = [size for size in _SMALL if size < max_num_seqs]
    if len(small) < len(_SMALL):
        return (*small, max_num_seqs)
    step = _STEP
    while len(large := [*range(_SMALL[-1] + step, max_num_seqs, step), max_num_seqs]) > MAX_GRAPHS - len(small):
        step += _STEP
    return (*small, *large)


def table_width_of(num_pages: int) -> int:
    """What tables of `num_pages` are padded to where a table's width matters: a power of two."""
    return 1 << (num_pages - 1).bit_length()


def num_graphs(max_num_seqs: int) -> int:
    """How many are captured, each for every length."""
    return len(batch_sizes(max_num_seqs))
