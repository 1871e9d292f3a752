"""Sizes of decoding steps that the transformers engine captures as CUDA graphs; used by engine and planner."""

from __future__ import annotations

from qserve.engines.transformers.kernels.kv_pages import FLASH_PAGE_TOKENS

__all__ = ["MAX_GRAPHS", "batch_size_of", "num_graphs", "table_width_of"]

MAX_GRAPHS = 48
"""Kept at once; the one that was not used for the longest makes place for a new one."""


def batch_size_of(num_rows: int) -> int:
    """What `num_rows` are padded to: 1, 2, 4, 8, 16, 24 … 64, 80, 96 …"""
    if num_rows <= 8:
        return 1 << (num_rows - 1).bit_length()
    multiple = 8 if num_rows <= 64 else 16
    return -(-num_rows // multiple) * multiple


def table_width_of(num_pages: int) -> int:
    """What tables of `num_pages` are padded to: a power of two."""
    return 1 << (num_pages - 1).bit_length()


def num_graphs(max_num_seqs: int, max_model_len: int) -> int:
    """The most that are kept: every size of a batch with every width of a table, one page ahead of the longest."""
    batches = {batch_size_of(rows) for rows in range(1, max_num_seqs + 1)}
    pages = -(-max_model_len // FLASH_PAGE_TOKENS) + 1
    widths = {table_width_of(num) for num in range(2, pages + 1)}
    return min(MAX_GRAPHS, len(batches) * len(widths))
