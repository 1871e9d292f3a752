"""Attention over a packed row in which several texts may share a beginning (`qserve.reward.scoring.rows`).

Known to transformers through `AttentionInterface`, as flash-attn's `varlen` is. Each segment of the row is one causal
SDPA call over its own keys, with the keys of the shared beginning before them; nothing is masked away between texts,
and no mask of the whole row exists. On a card whose kernel was found right, segments that share nothing are one call
together.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface

from qserve.engines.transformers.worker.attention.texts import attend_texts
from qserve.model.sdpa import grouped_sdpa, leave_out_cudnn
from qserve.model.transfers import upload

__all__ = ["NAME", "RowLayout", "Segment", "register", "segment_sdpa"]

NAME = "qserve_segment_sdpa"


@dataclass(frozen=True)
class Segment:
    """Tokens [start, stop) of a row: they see each other causally, and all of [shared_start, shared_stop)."""

    start: int
    stop: int
    shared_start: int = 0
    shared_stop: int = 0


@dataclass(frozen=True)
class RowLayout:
    """The segments of one row, which they fill, in order.

    `by_one_call`: whether the card has the kernel for those that share nothing. `masks` and `bounds_on` keep what one
    layer made for the next one on its device.
    """

    segments: tuple[Segment, ...]
    by_one_call: bool = False
    masks: dict[tuple[int, int, torch.device], torch.Tensor] = field(default_factory=dict)
    bounds_on: dict[torch.device, torch.Tensor] = field(default_factory=dict)

    @cached_property
    def alone(self) -> tuple[Segment, ...]:
        """Those that share no beginning."""
        return tuple(one for one in self.segments if one.shared_stop <= one.shared_start)

    @property
    def takes_one_call(self) -> bool:
        """Of all segments; those that share a beginning are then computed again, with it."""
        return self.by_one_call and len(self.alone) > 1

    @cached_property
    def longest(self) -> int:
        """Tokens of a segment."""
        return max(one.stop - one.start for one in self.segments)

    def bounds(self, device: torch.device) -> torch.Tensor:
        """Where each segment begins and the last one ends, int32."""
        if device not in self.bounds_on:
            ends = [0, *(one.stop for one in self.segments)]
            self.bounds_on[device] = upload(ends, torch.int32, device)
        return self.bounds_on[device]

    def mask(self, num_queries: int, num_keys: int, device: torch.device) -> torch.Tensor:
        """Causal, aligned to the end of the keys: [num_queries, num_keys], true where a key is seen."""
        wanted = (num_queries, num_keys, device)
        if wanted not in self.masks:
            ones = torch.ones(num_queries, num_keys, dtype=torch.bool, device=device)
            self.masks[wanted] = ones.tril(diagonal=num_keys - num_queries)
        return self.masks[wanted]


def register() -> None:
    """Make the function known to transformers under `NAME`; it needs no mask of the library's."""
    AttentionInterface.register(NAME, segment_sdpa)
    AttentionMaskInterface.register(NAME, lambda *_args, **_kwargs: None)
    leave_out_cudnn()


def segment_sdpa(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    layout: RowLayout | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """One layer's attention over the row that `layout` describes.

    Args:
        module: the attention layer; not used.
        query: [1, heads, tokens, head_dim].
        key: [1, kv_heads, tokens, head_dim].
        value: as `key`.
        attention_mask: None; the layout says it all.
        scaling: factor on the scores; None is 1/√head_dim.
        dropout: not used in inference.
        layout: where each text lies. The library hands it through as it does any keyword.
        kwargs: what else the library hands through.

    Returns:
        [1, tokens, heads, head_dim], and None for the attention weights that nobody asks for.

    """
    if layout is None:
        raise ValueError("this attention needs the layout of the row; the model was called without one")
    if layout.takes_one_call:
        device = query.device
        output = attend_texts(query, key, value, layout.bounds(device), layout.longest, scaling).transpose(1, 2)
        left = [one for one in layout.segments if one not in layout.alone]
    else:
        output, left = torch.empty_like(query), list(layout.segments)
    for one in left:
        own = slice(one.start, one.stop)
        keys, values = key[:, :, own], value[:, :, own]
        mask = None
        if one.shared_stop > one.shared_start:
            shared = slice(one.shared_start, one.shared_stop)
            keys, values = torch.cat((key[:, :, shared], keys), 2), torch.cat((value[:, :, shared], values), 2)
            mask = layout.mask(one.stop - one.start, keys.shape[2], query.device)
        output[:, :, own] = grouped_sdpa(query[:, :, own], keys, values, mask, scaling)
    return output.transpose(1, 2).contiguous(), None
