"""Attention over keys that lie in pages, found by a table of pages for each sequence.

A kernel that reads pages in place (`kernels`) is used where one is right for card, dtype and head; elsewhere the pages
of each sequence are brought together for torch's SDPA (`gathered`): on a CPU, on cards before Ampere, in float32.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar

import torch
from torch.nn.functional import scaled_dot_product_attention

from qserve.engines.transformers.worker.attention.step import PerDevice

__all__ = ["PageStep", "PagedKernel", "attend_pages", "gathered"]

Made = TypeVar("Made")
_COPIED_BYTES = 256 << 20


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
    _made: dict[Any, Any] = field(default_factory=dict, repr=False, compare=False, kw_only=True)

    @cached_property
    def key_bounds(self) -> torch.Tensor:
        """int32 [sequences + 1], as if the keys lay end to end; made once a step and device."""
        return torch.nn.functional.pad(self.num_keys.cumsum(0, dtype=torch.int32), (1, 0))

    def once(self, make: Callable[[PageStep, int], Made], number: int) -> Made:
        """What `make` returns for this step and `number`: made in its first layer, and read in the others."""
        if (make, number) not in self._made:
            self._made[make, number] = make(self, number)
        made: Made = self._made[make, number]
        return made


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
    """A `PagedKernel` for steps of one query a sequence: the pages of each are brought together.

    Of so many sequences at once as the copies of _COPIED_BYTES hold, one at least: all are padded to the longest.
    """
    assert step.max_queries == 1
    page_tokens, kv_heads = keys.shape[1:3]
    table = step.block_table[:, : -(-step.max_keys // page_tokens)]
    places = torch.arange(table.shape[1] * page_tokens, device=query.device)
    at_once = max(1, _COPIED_BYTES // (2 * table.shape[1] * keys[0].numel() * keys.itemsize))
    mixed = torch.empty_like(query)
    for some in (slice(start, start + at_once) for start in range(0, len(query), at_once)):
        key, value = (part[table[some]].flatten(1, 2).transpose(1, 2) for part in (keys, values))
        mixed[some] = scaled_dot_product_attention(
            query[some].reshape(-1, kv_heads, query.shape[1] // kv_heads, query.shape[2]),
            key,
            value,
            attn_mask=(places < step.num_keys[some, None])[:, None, None, :],
            scale=scaling,
        ).flatten(1, 2)
    return mixed
