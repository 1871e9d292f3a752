"""Attention over sequences of different lengths that lie end to end in one row, without one big mask.

transformers' continuous batching packs every running request into one row. With `sdpa` it then builds a dense mask of
all queries against all keys: eight prompts of 128 tokens cost eight times the arithmetic that they need, measured as
41 % of a prefill step and 24 % of a decode step (docs/results/log/engine.md). flash-attn has a kernel for this
(`varlen`); where it is not installed, or on a CPU, this function takes its place, through the library's
`AttentionInterface`:

- a prompt, or a chunk of one, is one causal SDPA call;
- sequences that decode one token are padded to a common length and share a call, in buckets of similar length. The
  query heads of one key head become the rows of its query, so no key is repeated for grouped-query attention.

The batcher of hybrids (`batching.rows`) uses the same kernels over a cache of its own: it says with a `RowStep` what to
read.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise, starmap
from typing import Any

import torch
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface

from qserve.engines.transformers.worker.attention.pages import PageStep, attend_pages
from qserve.engines.transformers.worker.attention.step import IdentityCache, PerDevice, keep_arguments
from qserve.model.sdpa import Bucket, causal_prompt, decode, leave_out_cudnn, length_buckets, over_buckets, padded_width

__all__ = ["NAME", "RowStep", "register", "use", "varlen_sdpa"]

NAME = "qserve_varlen_sdpa"


@dataclass(frozen=True)
class RowStep(PerDevice):
    """What one forward over rows of `rows.RowCache` writes and reads, the same in every layer.

    `write_index` has the places of the new keys. `read_index` has those of all keys: of the one sequence whose prompt
    is read, in order (None when the new keys are all there are); or of every decoding sequence, `buckets` in turn, each
    sequence padded to its bucket's width.
    """

    write_index: torch.Tensor
    read_index: torch.Tensor | None
    buckets: tuple[Bucket, ...] = ()


def register() -> None:
    """Make the function known to transformers under `NAME`; a packed row needs no mask."""
    AttentionInterface.register(NAME, varlen_sdpa)
    AttentionMaskInterface.register(NAME, lambda *_args, **_kwargs: None)
    leave_out_cudnn()


def use(model: Any) -> None:
    """Let `model` attend by `varlen_sdpa`, on one device or on several."""
    register()
    model.set_attn_implementation(NAME)
    keep_arguments(model)


def varlen_sdpa(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    cache: Any = None,
    row_step: RowStep | None = None,
    page_step: PageStep | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """One layer's causal attention.

    Args:
        module: the attention layer; only its `layer_idx` is read.
        query: [1, heads, total_q, head_dim].
        key: [1, kv_heads, total_k, head_dim]; without `cache`, total_k equals total_q.
        value: as `key`.
        attention_mask: None, since the bounds say it all.
        scaling: factor on the scores; None is 1/√head_dim.
        dropout: not used in inference.
        cache: transformers' paged cache in continuous batching; it stores the new keys and returns all of them.
        row_step: in a forward over rows; then `query` is [batch, heads, 1, head_dim] where sequences decode, and keys
            and values are those that `rows.RowCache` has read.
        page_step: in a step over pages; `cache` has them.
        kwargs: holds `cu_seq_lens_q` and `cu_seq_lens_k`, the bounds of the sequences (int, batch + 1 of them); on
            whatever device, since each device gets its copy of what a step needs.

    Returns:
        [1, total_q, heads, head_dim] ([batch, 1, heads, head_dim] for rows that decode), and None for the attention
        weights that nobody asks for.

    """
    if row_step is not None:
        return _attend_rows(row_step, query, key, value, scaling), None
    device = _device_of(query)
    if page_step is not None:
        layer_idx = int(module.layer_idx)  # type: ignore[arg-type]  # every attention layer of transformers has one
        pages = cache.layer_to_allocator[layer_idx].get_cache_for_block_table(layer_idx)
        factor = query.shape[-1] ** -0.5 if scaling is None else scaling
        return attend_pages(page_step.on(device), pages, query, key, value, factor), None
    bounds_of_keys = kwargs["cu_seq_lens_k"]
    if cache is not None:
        layer_idx = int(module.layer_idx)  # type: ignore[arg-type]  # every attention layer of transformers has one
        allocator = cache.layer_to_allocator[layer_idx]
        if _all_decode(allocator, query.shape[2], kwargs):
            decoding = _made.of((kwargs["read_index"],), lambda: _make_decoding_step(allocator, kwargs)).on(device)
            keys, values = _updated(cache, layer_idx, key, value, kwargs, decoding.indices)
            return over_buckets(decoding.buckets, query, keys[0], values[0], scaling).transpose(1, 2).contiguous(), None
        indices = _made.of((kwargs["read_index"], kwargs["write_index"]), lambda: _Indices.of(kwargs)).on(device)
        key, value = _updated(cache, layer_idx, key, value, kwargs, indices)
        bounds_of_keys = bounds_of_keys[allocator.layer_type]
    bounds = (kwargs["cu_seq_lens_q"], bounds_of_keys)
    packed = _made.of(bounds, lambda: _make_packed_step(*bounds)).on(device)
    output = torch.empty_like(query)
    for rows, columns in packed.prompts:
        output[:, :, rows] = causal_prompt(query[:, :, rows], key[:, :, columns], value[:, :, columns], scaling)
    for rows_of, starts, ends, longest in packed.decoding:
        output[:, :, rows_of] = decode(query[:, :, rows_of], key, value, starts, ends, longest, scaling)
    return output.transpose(1, 2).contiguous(), None


# A step has its indices, and for each of two kinds of layers its bounds or what decoding reads.
_made = IdentityCache(num_kept=4)


def _device_of(states: torch.Tensor) -> torch.device:
    """Where a layer computes. Tests whose cards are not there put another function here."""
    return states.device


@dataclass(frozen=True)
class _Indices(PerDevice):
    """Where in the paged cache a step reads and writes: one tensor of each for every allocator of the cache."""

    read: tuple[torch.Tensor, ...]
    write: tuple[torch.Tensor, ...]

    @classmethod
    def of(cls, kwargs: dict[str, Any]) -> _Indices:
        return cls(tuple(kwargs["read_index"]), tuple(kwargs["write_index"]))


@dataclass(frozen=True)
class _PackedStep(PerDevice):
    """A step in which some sequences read prompts, made of the bounds of queries and keys.

    `prompts` has queries and keys of each, `decoding` the others in buckets: rows of the query, where the keys of each
    begin and end, and the longest.
    """

    prompts: tuple[tuple[slice, slice], ...]
    decoding: tuple[tuple[torch.Tensor, torch.Tensor, torch.Tensor, int], ...]


def _make_packed_step(of_queries: torch.Tensor, of_keys: torch.Tensor) -> _PackedStep:
    """Reads the bounds, which waits for a card: hence once a step, and not in every layer."""
    rows, columns = (list(starmap(slice, pairwise(bounds.tolist()))) for bounds in (of_queries, of_keys))
    lengths = {i: columns[i].stop - columns[i].start for i in range(len(rows)) if rows[i].stop - rows[i].start == 1}
    prompts = [pair for i, pair in enumerate(zip(rows, columns, strict=True)) if i not in lengths]
    decoding = []
    for bucket in length_buckets(lengths):
        found = [[rows[i].start for i in bucket], [columns[i].start for i in bucket], [columns[i].stop for i in bucket]]
        decoding.append((*torch.tensor(found, device=of_queries.device), lengths[bucket[-1]]))
    return _PackedStep(tuple(pair for pair in prompts if pair[0].stop > pair[0].start), tuple(decoding))


@dataclass(frozen=True)
class _DecodingStep(PerDevice):
    """A step in which every sequence has one query: what to read of the cache, so that it comes out padded already.

    `indices` reads cache positions bucket after bucket, each sequence padded to its bucket's width.
    """

    indices: _Indices
    buckets: tuple[Bucket, ...]


def _all_decode(allocator: Any, num_queries: int, kwargs: dict[str, Any]) -> bool:
    """Whether all sequences decode one token, in layers of full attention."""
    if allocator.layer_type != "full_attention" or kwargs.get("block_table") is not None:
        return False
    num_sequences = len(kwargs["cu_seq_lens_k"][allocator.layer_type]) - 1
    return bool(num_sequences == num_queries and kwargs["read_index"][allocator.index].numel())


def _make_decoding_step(allocator: Any, kwargs: dict[str, Any]) -> _DecodingStep:
    bounds, reads = kwargs["cu_seq_lens_k"][allocator.layer_type], list(kwargs["read_index"])
    read_index = reads[allocator.index]
    ends = bounds.tolist()
    lengths = {index: ends[index + 1] - ends[index] for index in range(len(ends) - 1)}
    parts, buckets = [], []
    for members in length_buckets(lengths):
        rows = torch.tensor(members, device=bounds.device)
        width = padded_width(lengths[members[-1]])
        columns = bounds[rows][:, None] + torch.arange(width, device=bounds.device)
        past_end = bounds[rows + 1][:, None]
        parts.append(read_index[torch.minimum(columns, past_end - 1)].flatten())
        buckets.append((rows, width, (columns < past_end)[:, None, None, :]))
    reads[allocator.index] = torch.cat(parts)
    return _DecodingStep(_Indices(tuple(reads), tuple(kwargs["write_index"])), tuple(buckets))


def _updated(
    cache: Any, layer_idx: int, key: torch.Tensor, value: torch.Tensor, kwargs: dict[str, Any], indices: _Indices
) -> tuple[torch.Tensor, torch.Tensor]:
    """The new keys and values are stored; what `indices` read, [1, kv_heads, tokens, head_dim]."""
    mine = {**kwargs, "read_index": indices.read, "write_index": indices.write}
    keys, values = cache.update(key_states=key, value_states=value, layer_idx=layer_idx, kwargs=mine)
    return keys, values


def _attend_rows(
    step: RowStep, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scaling: float | None
) -> torch.Tensor:
    step = step.on(_device_of(query))
    if not step.buckets:
        return causal_prompt(query, key, value, scaling).transpose(1, 2).contiguous()
    mixed = over_buckets(step.buckets, query.transpose(0, 2), key[0], value[0], scaling)
    return mixed.permute(2, 0, 1, 3).contiguous()
