"""Calls of torch's SDPA: one sequence, or several with one query each. Heads that share a key see it in place."""

from __future__ import annotations

import torch
from torch.nn.functional import scaled_dot_product_attention

__all__ = [
    "Bucket",
    "causal_prompt",
    "decode",
    "grouped_sdpa",
    "leave_out_cudnn",
    "length_buckets",
    "over_buckets",
    "padded_width",
]

# Keys are padded to a multiple of this, so that a CPU's kernels meet few shapes: each new one is compiled once.
_KEY_MULTIPLE = 64

Bucket = tuple[torch.Tensor, int, torch.Tensor]
"""Sequences that share a call: rows of the query [batch], padded width, and a mask [batch, 1, 1, width] that is true
where a key is the sequence's own."""


def leave_out_cudnn() -> None:
    """From now on SDPA does not take cuDNN's kernels, which torch prefers on Hopper and data-centre Blackwell.

    They want a plan for every new pair of lengths, some 30 ms each, and here lengths differ with every request. Source:
    torch's sdp_utils.cpp (check_prefer_cudnn_attention) and cudnn/MHA.cpp (plans are kept by MHAParams).
    """
    torch.backends.cuda.enable_cudnn_sdp(False)


def over_buckets(
    buckets: tuple[Bucket, ...], query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scaling: float | None
) -> torch.Tensor:
    """`query` and the answer are [1, heads, batch, head_dim], keys and values [kv_heads, sum of padded, head_dim]."""
    output = torch.empty_like(query)
    start = 0
    for rows, width, mask in buckets:
        span = slice(start, start + len(rows) * width)
        start = span.stop
        output[:, :, rows] = _grouped(query[:, :, rows], keys[:, span], values[:, span], mask, scaling)
    return output


def length_buckets(lengths: dict[int, int]) -> list[list[int]]:
    """Sequences, shortest first, in buckets whose longest is at most twice the shortest: padding never doubles work."""
    buckets: list[list[int]] = []
    for index in sorted(lengths, key=lambda i: lengths[i]):
        if buckets and lengths[index] <= max(2 * lengths[buckets[-1][0]], _KEY_MULTIPLE):
            buckets[-1].append(index)
        else:
            buckets.append([index])
    return buckets


def causal_prompt(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scaling: float | None) -> torch.Tensor:
    """One sequence. A chunk that continues a prompt needs a causal mask aligned to the end of the keys."""
    num_queries, num_keys = query.shape[2], key.shape[2]
    mask = None
    if num_queries < num_keys:
        ones = torch.ones(num_queries, num_keys, dtype=torch.bool, device=query.device)
        mask = ones.tril(diagonal=num_keys - num_queries)
    return grouped_sdpa(query, key, value, mask, scaling)


def grouped_sdpa(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None, scaling: float | None
) -> torch.Tensor:
    """SDPA of one sequence whose query heads may share key heads; causal without a `mask` [queries, keys].

    Where no fused kernel takes grouped heads, torch would write out all scores in float32: gigabytes for a long prompt.
    There a key head is a row of a batch, seen by its query heads without being copied.
    """
    heads, kv_heads = query.shape[1], key.shape[1]
    if heads == kv_heads or _has_grouped_kernel(query, mask):
        return scaled_dot_product_attention(
            query, key, value, attn_mask=mask, is_causal=mask is None, scale=scaling, enable_gqa=heads != kv_heads
        )
    group = heads // kv_heads
    keys, values = (states[0][:, None].expand(-1, group, -1, -1) for states in (key, value))
    mixed = scaled_dot_product_attention(
        query[0].reshape(kv_heads, group, *query.shape[2:]),
        keys,
        values,
        attn_mask=mask,
        is_causal=mask is None,
        scale=scaling,
    )
    return mixed.flatten(0, 1)[None]


def _has_grouped_kernel(query: torch.Tensor, mask: torch.Tensor | None) -> bool:
    """On a card only flash's, which takes no mask and is for 16 bit from Ampere on (torch's sdp_utils.cpp)."""
    if query.device.type != "cuda":
        return True
    is_16_bit = query.dtype in (torch.float16, torch.bfloat16)
    return mask is None and is_16_bit and torch.cuda.get_device_capability(query.device) >= (8, 0)


def decode(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    starts: torch.Tensor,
    ends: torch.Tensor,
    longest: int,
    scaling: float | None,
) -> torch.Tensor:
    """One token of each of `batch` sequences; `query` and the answer are [1, heads, batch, head_dim]."""
    width = padded_width(longest)
    columns = starts[:, None] + torch.arange(width, device=query.device)
    mask = (columns < ends[:, None])[:, None, None, :]
    columns = columns.clamp(max=key.shape[2] - 1).flatten()
    # Tokens lie as [tokens, kv_heads, head_dim] and are seen as [kv_heads, tokens, head_dim]: gather whole tokens.
    keys, values = (states[0].transpose(0, 1).index_select(0, columns).transpose(0, 1) for states in (key, value))
    return _grouped(query, keys, values, mask, scaling)


def _grouped(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor, scaling: float | None
) -> torch.Tensor:
    """`query` [1, heads, batch, head_dim] against `keys` [kv_heads, batch · width, head_dim], one call for all."""
    _, heads, batch, head_dim = query.shape
    kv_heads = keys.shape[0]
    keys, values = (
        states.transpose(0, 1).reshape(batch, -1, kv_heads, head_dim).transpose(1, 2) for states in (keys, values)
    )
    grouped = query[0].transpose(0, 1).reshape(batch, kv_heads, heads // kv_heads, head_dim)
    mixed = scaled_dot_product_attention(grouped, keys, values, attn_mask=mask, scale=scaling)
    return mixed.reshape(batch, heads, head_dim).transpose(0, 1)[None]


def padded_width(length: int) -> int:
    """`length` up to a whole multiple, so that kernels meet few shapes."""
    return -(-length // _KEY_MULTIPLE) * _KEY_MULTIPLE
