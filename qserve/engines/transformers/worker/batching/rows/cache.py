"""The cache of a batch whose sequences are rows: keys in pages, and the states of linear attention row by row.

It stands behind transformers' own `Cache`, so that any model which keeps keys (full attention) and states (linear
attention: a window of a convolution and a recurrent matrix) runs over it unchanged. Shapes, dtypes and devices are not
guessed from the config: they are those that one forward of one token leaves in the library's own `DynamicCache`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from transformers import DynamicCache
from transformers.cache_utils import Cache, CacheLayerMixin, DynamicLayer, LinearAttentionLayer

from qserve.engines.transformers.kernels.kv_pages import PAGE_TOKENS
from qserve.engines.transformers.worker.attention.compiled_rows import CompiledRowStep
from qserve.engines.transformers.worker.attention.packed import RowStep
from qserve.engines.transformers.worker.batching.lazy_pools import lazy_zeros
from qserve.model.sdpa import Bucket, length_buckets, padded_width
from qserve.model.transfers import upload

__all__ = ["Pages", "RowCache"]


class Pages:
    """Which pages of the pool are free."""

    def __init__(self, num_pages: int) -> None:
        self.num_pages = num_pages
        self._num_touched = 0
        self._returned: list[int] = []

    @property
    def num_free(self) -> int:
        """Pages that nobody holds."""
        return self.num_pages - self._num_touched + len(self._returned)

    def take(self, count: int) -> list[int]:
        """`count` pages, used ones first; the caller has seen that so many are free."""
        again = [self._returned.pop() for _ in range(min(count, len(self._returned)))]
        fresh = range(self._num_touched, self._num_touched + count - len(again))
        self._num_touched = fresh.stop
        return [*again, *fresh]

    def give_back(self, pages: list[int]) -> None:
        """Free them."""
        self._returned += pages

    @staticmethod
    def needed_for(num_tokens: int) -> int:
        """Pages that hold `num_tokens`."""
        return -(-num_tokens // PAGE_TOKENS)


class RowCache(Cache):  # type: ignore[misc]  # transformers is untyped
    """Keys of `num_pages` pages and states of `num_rows` rows. Row i of the batch is row i of every state.

    Before a forward, `read_prompt` or `decode` says which rows it is about, and returns what its attention needs.

    Attributes:
        make_step: of compiled steps, from rows, lengths before and after, and places; None: the library computes.
    """

    make_step: Callable[[int, list[int], list[int], torch.Tensor], CompiledRowStep] | None = None

    def __init__(self, probe: DynamicCache, num_rows: int, num_pages: int, device: torch.device) -> None:
        """Allocate everything.

        Args:
            probe: the library's cache after a forward over one token.
            num_rows: sequences at once.
            num_pages: pages of keys, shared by all.
            device: where the model's inputs are.

        Raises:
            TypeError: a layer keeps something else than keys of all tokens, or states.

        """
        super().__init__(layers=[self._allocated(layer, num_rows, num_pages) for layer in probe.layers])
        self._states = [layer for layer in self.layers if isinstance(layer, _StateRows)]
        # A page number for each page of each row, in order.
        self._table = torch.zeros(num_rows, num_pages, dtype=torch.int32, device=device)
        self._step: RowStep | None = None

    def _allocated(self, layer: Any, num_rows: int, num_pages: int) -> _PagedKeys | _StateRows:
        if type(layer) is DynamicLayer:
            return _PagedKeys(self, layer, num_pages * PAGE_TOKENS)
        if type(layer) is LinearAttentionLayer:
            return _StateRows(layer, num_rows)
        raise TypeError(f"a layer's cache is a {type(layer).__name__}")

    @property
    def num_bytes(self) -> int:
        """Size of all keys, values and states."""
        return sum(tensor.nbytes for tensor in self.tensors())

    def tensors(self) -> Iterator[torch.Tensor]:
        """Of all layers."""
        for layer in self.layers:
            yield from layer.tensors()

    def tensors_by_layer(self) -> dict[int, tuple[torch.Tensor, torch.Tensor]]:
        """Keys and values [tokens, kv_heads · size] of each layer, or windows and states of all rows."""
        return {index: layer.whole() for index, layer in enumerate(self.layers)}

    @property
    def step(self) -> RowStep:
        """Of the forward that runs."""
        assert self._step is not None
        return self._step

    def assign(self, row: int, pages: list[int], start: int = 0) -> None:
        """From its `start`-th on, the row's pages are `pages`."""
        self._table[row, start : start + len(pages)] = upload(pages, self._table.dtype, self._table.device)

    def move(self, source: int, target: int) -> None:
        """Row `source` becomes row `target`, whose own content is lost."""
        self._table[target] = self._table[source]
        for layer in self._states:
            layer.move(source, target)

    def exchange(self, one: int, other: int) -> None:
        """Each of two rows becomes the other."""
        self._table[[one, other]] = self._table[[other, one]]
        for layer in self._states:
            layer.exchange(one, other)

    def read_prompt(self, row: int, start: int, stop: int) -> RowStep | CompiledRowStep:
        """The next forward reads tokens `start` to `stop` of one row's prompt."""
        if self.make_step is not None:
            return self.make_step(row, [start], [stop], self._all_places(row, 1, stop))
        for layer in self._states:
            layer.show(slice(row, row + 1), has_past=start > 0)
        everything = self._places(torch.arange(stop, device=self._table.device)[None], self._table[row : row + 1])[0]
        self._step = RowStep(everything[start:], everything if start else None)
        return self._step

    def decode(self, lengths: list[int]) -> RowStep | CompiledRowStep:
        """The next forward takes one token of each of the first rows, whose lengths (the token included) these are."""
        if self.make_step is not None:
            places = self._all_places(0, len(lengths), max(lengths))
            return self.make_step(0, [length - 1 for length in lengths], lengths, places)
        for layer in self._states:
            layer.show(slice(0, len(lengths)), has_past=True)
        device = self._table.device
        ends = upload(lengths, torch.long, device)
        writes = self._places(ends[:, None] - 1, self._table[: len(lengths)])[:, 0]
        reads: list[torch.Tensor] = []
        buckets: list[Bucket] = []
        for members in length_buckets(dict(enumerate(lengths))):
            rows = upload(members, torch.long, device)
            width = padded_width(lengths[members[-1]])
            columns = torch.arange(width, device=device)[None].expand(len(members), -1)
            past_end = ends[rows][:, None]
            reads.append(self._places(torch.minimum(columns, past_end - 1), self._table[rows]).flatten())
            buckets.append((rows, width, (columns < past_end)[:, None, None, :]))
        self._step = RowStep(writes, torch.cat(reads), tuple(buckets))
        return self._step

    def _all_places(self, row: int, num_rows: int, num_tokens: int) -> torch.Tensor:
        """Where the first tokens of `num_rows` rows lie, int64 [rows, tokens]; of those that a row lacks, anywhere."""
        positions = torch.arange(num_tokens, device=self._table.device)[None].expand(num_rows, -1)
        return self._places(positions, self._table[row : row + num_rows])

    @staticmethod
    def _places(positions: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        """Where in the pool the tokens at `positions` [rows, n] lie."""
        pages = table.gather(1, positions // PAGE_TOKENS).long()
        return pages * PAGE_TOKENS + positions % PAGE_TOKENS


class _PagedKeys(CacheLayerMixin):  # type: ignore[misc]  # transformers is untyped
    """One layer of full attention."""

    def __init__(self, cache: RowCache, probe: DynamicLayer, num_tokens: int) -> None:
        super().__init__()
        self._cache = cache
        _, kv_heads, _, key_width = probe.keys.shape
        sizes = ((probe.keys, key_width), (probe.values, probe.values.shape[-1]))
        self.keys, self.values = (
            lazy_zeros((num_tokens, kv_heads, width), like.dtype, like.device) for like, width in sizes
        )
        self.is_initialized = True

    def tensors(self) -> Iterator[torch.Tensor]:
        yield self.keys
        yield self.values

    def whole(self) -> tuple[torch.Tensor, torch.Tensor]:
        return self.keys.flatten(1), self.values.flatten(1)

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *_: Any, **__: Any) -> tuple[Any, Any]:
        """Store [batch, kv_heads, n, width]; return what the step's attention reads, [1, kv_heads, tokens, width]."""
        step = self._cache.step.on(key_states.device)
        answer = []
        for pool, new in ((self.keys, key_states), (self.values, value_states)):
            pool[step.write_index] = new.transpose(1, 2).flatten(0, 1)
            read = new if step.read_index is None else pool[step.read_index].transpose(0, 1)[None]
            answer.append(read)
        return answer[0], answer[1]

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Nothing: all is allocated."""

    # The library asks for these where it makes masks; ours are in the step.
    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return query_length, 0

    def get_seq_length(self) -> int:
        return 0

    def get_max_length(self) -> int:
        return -1


class _StateRows(LinearAttentionLayer):  # type: ignore[misc]  # transformers is untyped
    """One layer of linear attention. The library's own code updates, in place, the rows that are shown to it."""

    def __init__(self, probe: LinearAttentionLayer, num_rows: int) -> None:
        super().__init__(number_of_states=probe.number_of_states)
        self.dtype, self.device = probe.dtype, probe.device
        self.has_previous_state: dict[int, bool] = dict.fromkeys(range(probe.number_of_states), False)
        self.conv_kernel_size = dict(probe.conv_kernel_size)
        self.is_conv_states_initialized = dict(probe.is_conv_states_initialized)
        self.is_recurrent_states_initialized = dict(probe.is_recurrent_states_initialized)
        self._all_conv = self._rows_like(probe.conv_states, num_rows)
        self._all_recurrent = self._rows_like(probe.recurrent_states, num_rows)

    @staticmethod
    def _rows_like(states: dict[int, torch.Tensor | None], num_rows: int) -> dict[int, torch.Tensor]:
        return {
            index: lazy_zeros((num_rows, *one.shape[1:]), one.dtype, one.device)
            for index, one in states.items()
            if one is not None
        }

    def tensors(self) -> Iterator[torch.Tensor]:
        yield from self._all_conv.values()
        yield from self._all_recurrent.values()

    def whole(self) -> tuple[torch.Tensor, torch.Tensor]:
        return self._all_conv[0], self._all_recurrent[0]

    def show(self, rows: slice, *, has_past: bool) -> None:
        self.conv_states = {index: states[rows] for index, states in self._all_conv.items()}
        self.recurrent_states = {index: states[rows] for index, states in self._all_recurrent.items()}
        self.has_previous_state = dict.fromkeys(self.has_previous_state, has_past)

    def move(self, source: int, target: int) -> None:
        for states in self.tensors():
            states[target].copy_(states[source])

    def exchange(self, one: int, other: int) -> None:
        for states in self.tensors():
            before = states[one].clone()
            states[one].copy_(states[other])
            states[other].copy_(before)
