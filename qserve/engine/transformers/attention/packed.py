"""Attention over sequences of different lengths that lie end to end in one row, without one big mask.

transformers' continuous batching packs every running request into one row. With `sdpa` it then builds a dense mask of
all queries against all keys: eight prompts of 128 tokens cost eight times the arithmetic that they need, measured as
41 % of a prefill step and 24 % of a decode step (docs/results/LOG.md). flash-attn has a kernel for this (`varlen`);
where it is not installed, or on a CPU, this function takes its place, by the library's own door, `AttentionInterface`:

- a prompt, or a chunk of one, is one causal SDPA call;
- sequences that decode one token are padded to a common length and share a call, in buckets of similar length. The
  query heads of one key head become the rows of its query, so no key is repeated for grouped-query attention.

The batcher of hybrids (`row_batcher`) uses the same kernels over a cache of its own: it says with a `RowStep` what to
read.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from itertools import pairwise, starmap
from typing import Any

import torch
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface
from transformers.utils.import_utils import is_flash_attn_2_available

from qserve.model.sdpa import (
    Bucket,
    causal_prompt,
    decode,
    leave_out_cudnn,
    length_buckets,
    over_buckets,
    padded_width,
)

__all__ = ["FLASH", "NAME", "RowStep", "prefers_flash", "register", "varlen_sdpa"]

NAME = "qserve_varlen_sdpa"
FLASH = "flash_attention_2"


@dataclass(frozen=True)
class RowStep:
    """What one forward over rows of `rows.RowCache` writes and reads, the same in every layer.

    `write_index` has the places of the new keys. `read_index` has those of all keys: of the one sequence whose prompt
    is read, in order (None when the new keys are all there are); or of every decoding sequence, `buckets` in turn, each
    sequence padded to its bucket's width.
    """

    write_index: torch.Tensor
    read_index: torch.Tensor | None
    buckets: tuple[Bucket, ...] = ()
    _copies: dict[torch.device, RowStep] = field(default_factory=dict, repr=False, compare=False)

    def on(self, device: torch.device) -> RowStep:
        """Itself, where its tensors are on `device`; a copy there, made once, for layers on another card."""
        if self.write_index.device == device:
            return self
        if device not in self._copies:
            read = None if self.read_index is None else self.read_index.to(device)
            buckets = tuple((rows.to(device), width, mask.to(device)) for rows, width, mask in self.buckets)
            self._copies[device] = RowStep(self.write_index.to(device), read, buckets)
        return self._copies[device]


def register() -> None:
    """Make the function known to transformers under `NAME`; a packed row needs no mask."""
    AttentionInterface.register(NAME, varlen_sdpa)
    AttentionMaskInterface.register(NAME, lambda *_args, **_kwargs: None)
    leave_out_cudnn()


def prefers_flash(model: Any) -> bool:
    """Whether flash-attn is installed (no kernel is fetched from the hub for it), and card, model and dtype can."""
    if model.device.type != "cuda" or model.dtype not in (torch.float16, torch.bfloat16):
        return False
    can = torch.cuda.get_device_capability(model.device) >= (8, 0) and model._supports_flash_attn
    return bool(can and is_flash_attn_2_available())


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
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """One layer's causal attention.

    Args:
        module: the attention layer; only its `layer_idx` is read.
        query: [1, heads, total_q, head_dim].
        key: [1, kv_heads, total_k, head_dim]; without `cache`, total_k equals total_q.
        value: as `key`.
        attention_mask: None, since the borders say it all.
        scaling: factor on the scores; None is 1/√head_dim.
        dropout: not used in inference.
        cache: transformers' paged cache in continuous batching; it stores the new keys and returns all of them.
        row_step: in a forward over rows; then `query` is [batch, heads, 1, head_dim] where sequences decode, and keys
            and values are those that `rows.RowCache` has read.
        kwargs: holds `cu_seq_lens_q` and `cu_seq_lens_k`, the borders of the sequences (int, batch + 1 of them).

    Returns:
        [1, total_q, heads, head_dim] ([batch, 1, heads, head_dim] for rows that decode), and None for the attention
        weights that nobody asks for.

    """
    if row_step is not None:
        return _attend_rows(row_step, query, key, value, scaling), None
    if cache is not None:
        layer_idx = int(module.layer_idx)  # type: ignore[arg-type]  # every attention layer of transformers has one
        step = _decoding_step(cache.layer_to_allocator[layer_idx], query.shape[2], kwargs)
        if step is not None:
            return _decode_step(step, layer_idx, query, key, value, cache, kwargs, scaling), None
        key, value = cache.update(key_states=key, value_states=value, layer_idx=layer_idx, kwargs=kwargs)
    packed = _packed_step(kwargs["cu_seq_lens_q"], kwargs["cu_seq_lens_k"])
    output = torch.empty_like(query)
    for rows, columns in packed.prompts:
        output[:, :, rows] = causal_prompt(query[:, :, rows], key[:, :, columns], value[:, :, columns], scaling)
    for rows_of, starts, ends, longest in packed.decoding:
        output[:, :, rows_of] = decode(query[:, :, rows_of], key, value, starts, ends, longest, scaling)
    return output.transpose(1, 2).contiguous(), None


@dataclass(frozen=True)
class _PackedStep:
    """A step in which some sequences read prompts, made of the borders of queries and keys.

    `prompts` has queries and keys of each, `decoding` the others in buckets: rows of the query, where the keys of each
    begin and end, and the longest.
    """

    of_queries: torch.Tensor
    of_keys: torch.Tensor
    prompts: tuple[tuple[slice, slice], ...]
    decoding: tuple[tuple[torch.Tensor, torch.Tensor, torch.Tensor, int], ...]


# All layers of a step get the same tensors (another pair, where some slide). Reading them waits for a card, and so does
# every list that is brought there: it is done once a step, and not in every layer.
_last_packed: deque[_PackedStep] = deque(maxlen=2)


def _packed_step(of_queries: torch.Tensor, of_keys: torch.Tensor) -> _PackedStep:
    for known in _last_packed:
        if known.of_queries is of_queries and known.of_keys is of_keys:
            return known
    _last_packed.append(_make_packed_step(of_queries, of_keys))
    return _last_packed[-1]


def _make_packed_step(of_queries: torch.Tensor, of_keys: torch.Tensor) -> _PackedStep:
    rows, columns = (list(starmap(slice, pairwise(borders.tolist()))) for borders in (of_queries, of_keys))
    lengths = {i: columns[i].stop - columns[i].start for i in range(len(rows)) if rows[i].stop - rows[i].start == 1}
    prompts = [pair for i, pair in enumerate(zip(rows, columns, strict=True)) if i not in lengths]
    decoding = []
    for bucket in length_buckets(lengths):
        found = [[rows[i].start for i in bucket], [columns[i].start for i in bucket], [columns[i].stop for i in bucket]]
        decoding.append((*torch.tensor(found, device=of_queries.device), lengths[bucket[-1]]))
    return _PackedStep(
        of_queries, of_keys, tuple(pair for pair in prompts if pair[0].stop > pair[0].start), tuple(decoding)
    )


@dataclass(frozen=True)
class _DecodingStep:
    """A step in which every sequence has one query: what to read of the cache, so that it comes out padded already.

    `read_index` lists cache positions, bucket after bucket, each sequence padded to its bucket's width.
    """

    source: Any
    read_index: torch.Tensor
    buckets: tuple[Bucket, ...]


# All layers of a step get the same list of read positions; it is kept here with what was made of it for the first one.
_last_step: list[_DecodingStep] = []


def _decoding_step(allocator: Any, num_queries: int, kwargs: dict[str, Any]) -> _DecodingStep | None:
    """None unless all sequences decode one token in layers of full attention."""
    source = kwargs["read_index"]
    if allocator.layer_type != "full_attention" or kwargs.get("block_table") is not None:
        return None
    borders = kwargs["cu_seq_lens_k"][allocator.layer_type]
    read_index = source[allocator.index]
    if len(borders) - 1 != num_queries or read_index.numel() == 0:
        return None
    if not _last_step or _last_step[0].source is not source:
        _last_step[:] = [_make_step(source, read_index, borders)]
    return _last_step[0]


def _make_step(source: Any, read_index: torch.Tensor, borders: torch.Tensor) -> _DecodingStep:
    ends = borders.tolist()
    lengths = {index: ends[index + 1] - ends[index] for index in range(len(ends) - 1)}
    parts, buckets = [], []
    for members in length_buckets(lengths):
        rows = torch.tensor(members, device=borders.device)
        width = padded_width(lengths[members[-1]])
        columns = borders[rows][:, None] + torch.arange(width, device=borders.device)
        past_end = borders[rows + 1][:, None]
        parts.append(read_index[torch.minimum(columns, past_end - 1)].flatten())
        buckets.append((rows, width, (columns < past_end)[:, None, None, :]))
    return _DecodingStep(source, torch.cat(parts), tuple(buckets))


def _decode_step(
    step: _DecodingStep,
    layer_idx: int,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    cache: Any,
    kwargs: dict[str, Any],
    scaling: float | None,
) -> torch.Tensor:
    """Attention of a step that only decodes: the cache is read once, in the order in which it is needed."""
    index = cache.layer_to_allocator[layer_idx].index
    reads = [step.read_index if place == index else old for place, old in enumerate(kwargs["read_index"])]
    kwargs = {**kwargs, "read_index": reads}
    keys, values = cache.update(key_states=key, value_states=value, layer_idx=layer_idx, kwargs=kwargs)
    return over_buckets(step.buckets, query, keys[0], values[0], scaling).transpose(1, 2).contiguous()


def _attend_rows(
    step: RowStep, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scaling: float | None
) -> torch.Tensor:
    step = step.on(query.device)
    if not step.buckets:
        return causal_prompt(query, key, value, scaling).transpose(1, 2).contiguous()
    mixed = over_buckets(step.buckets, query.transpose(0, 2), key[0], value[0], scaling)
    return mixed.permute(2, 0, 1, 3).contiguous()
