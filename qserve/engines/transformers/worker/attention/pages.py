"""Attention over keys that lie in pages, found by a table of pages for each sequence.

A kernel that reads pages in place (`kernels`) is used where one is right for card, dtype and head; elsewhere the pages
of each sequence are brought together for torch's SDPA (`gathered`): on a CPU, on cards before Ampere, in float32.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch.nn.functional import scaled_dot_product_attention

from qserve.engines.transformers.worker.attention.step import PerDevice

__all__ = ["PageStep", "PagedKernel", "attend_pages", "gathered"]


@dataclass(frozen=True)
class PageStep(PerDevice):
    """What one forward writes to and reads of a cache of pages, the same in every layer.

    Attributes:
        write_index: int64 [tokens], the row of each new key in a layer's pages laid end to end.
        block_table: int32 [sequences, pages], numbers of pages in order.
        num_keys: int32 [sequences], those of the step included.
        query_bounds: int32 [sequences + 1], where the queries of each begin and end.
        max_queries: of one sequence, at most.
        max_keys: of one sequence, at most; what a kernel divides its work by.
        kernel: reads the pages.

    """

    write_index: torch.Tensor
    block_table: torch.Tensor
    num_keys: torch.Tensor
    query_bounds: torch.Tensor
    max_queries: int
    max_keys: int
    kernel: PagedKernel

    @cached_property
    def key_bounds(self) -> torch.Tensor:
        """int32 [sequences + 1], as if the keys lay end to end; made once a step and device."""
        return torch.nn.functional.pad(self.num_keys.cumsum(0, dtype=torch.int32), (1, 0))


PagedKernel = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, PageStep, float], torch.Tensor]
"""Query [tokens, heads, size], pages of keys and of values [pages, page, kv_heads, size], the step and the factor on
scores, to mixed values of query's shape."""


def attend_pages(
    step: PageStep,
    pages: tuple[torch.Tensor, torch.Tensor],
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    scaling: float,
) -> torch.Tensor:
    """One layer: the new keys and values are stored in `pages`, and the queries read what their sequences have there.

    Args:
        step: on the device of this layer.
        pages: of keys and of values, each [pages, page, kv_heads, size].
        query: [1, heads, tokens, size].
        key: [1, kv_heads, tokens, size].
        value: as `key`.
        scaling: factor on the scores.

    Returns:
        [1, tokens, heads, size].

    """
    for stored, new in zip(pages, (key, value), strict=True):
        stored.flatten(0, 1).index_copy_(0, step.write_index, new[0].transpose(0, 1))
    return step.kernel(query[0].transpose(0, 1), *pages, step, scaling)[None]


def gathered(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, step: PageStep, scaling: float
) -> torch.Tensor:
    """A `PagedKernel` for steps of one query a sequence: the pages of each are brought together."""
    assert step.max_queries == 1
    rows, heads, size = query.shape
    kv_heads = keys.shape[2]
    table = step.block_table[:, : -(-step.max_keys // keys.shape[1])]
    places = torch.arange(table.shape[1] * keys.shape[1], device=query.device)
    own = (places < step.num_keys[:, None])[:, None, None, :]
    key, value = (part[table].flatten(1, 2).transpose(1, 2) for part in (keys, values))
    mixed = scaled_dot_product_attention(
        query.reshape(rows, kv_heads, heads // kv_heads, size), key, value, attn_mask=own, scale=scaling
    )
    return mixed.reshape(rows, heads, size)
