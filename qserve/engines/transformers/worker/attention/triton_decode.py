"""A `PagedKernel` in Triton for steps of one query a sequence: keys are read in their pages, and long ones by parts.

All keys of a step are divided into parts of equal length, enough of them to occupy the card: so one long sequence among
short ones does not keep a single multiprocessor busy while the others wait. A program reads one part for all query
heads that share a head of keys; a second launch brings the parts of each sequence together. What a launch is made of
depends on the number of sequences alone, not on their lengths: one CUDA graph serves every length.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch
import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]

from qserve.engines.transformers.worker.attention.pages import PageStep
from qserve.model.cuda.kernels import Sizes, card_kernel

__all__ = ["PagedDecode"]

_PROGRAMS_EACH = 4
"""Programs that a multiprocessor is given where there are keys enough: two or three run at once, the others follow."""

_LEAST_PART = 64
"""Keys of a part; fewer would take longer to bring together than to read."""

_MOST_ITEMS, _MOST_COMPARED = 64, 4096
"""Of a program, and with how many sequences they are compared in all: more would not stay in registers."""
_PARTS_AT_ONCE = 8

_MOST_REGISTERS = 168
"""Three programs of four warps fit on a multiprocessor. Where no number is given, NVIDIA's assembler aims at more of
them, and some of its releases keep 8 bytes of a thread in memory for that."""

_LEAST_DOT = 16  # rows of the smallest product that matrix units make
_LEAST_MAJOR = 8  # of compute capability: Triton uses no matrix units of older cards
_LOG2_E = 1.4426950408889634  # 2^(x·log2 e) is e^x


@dataclass(frozen=True)
class _Parts:
    """How the keys of a step are divided. An item is a part of one sequence; items of a sequence follow each other.

    Attributes:
        rows: int32 [items], the sequence of each; -1 for items that are not needed.
        starts: int32 [items], the first key of each.
        ends: int32 [sequences], one past the last item of each.
        length: int32 [1], keys of a part.

    """

    rows: torch.Tensor
    starts: torch.Tensor
    ends: torch.Tensor
    length: torch.Tensor


@dataclass(frozen=True)
class PagedDecode:
    """For a card of `multi_processors`; `by_dot`: whether it has matrix units for the dtype at hand."""

    multi_processors: int
    by_dot: bool = True

    @classmethod
    def on(cls, device: torch.device, dtype: torch.dtype) -> PagedDecode:
        """For `device`, a card."""
        properties = torch.cuda.get_device_properties(device)
        return cls(properties.multi_processor_count, properties.major >= _LEAST_MAJOR and dtype.itemsize == 2)

    def __call__(
        self, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, step: PageStep, scaling: float
    ) -> torch.Tensor:
        """See `PagedKernel`; pages of any size, heads of any size and in any dtype that Triton multiplies."""
        num_rows, heads, size = query.shape
        page_tokens, kv_heads = keys.shape[1:3]
        with torch.cuda.device_of(query):  # type: ignore[no-untyped-call]
            parts = step.once(self._divide, kv_heads)
            num_items = len(parts.rows)
            mixed = torch.empty(num_items, heads, size, dtype=torch.float32, device=query.device)
            sums = torch.empty(num_items, heads, dtype=torch.float32, device=query.device)
            size_block = _power_of_2(size)
            group = heads // kv_heads
            attend = _attend_parts_by_head[(num_items, heads)]
            if self.by_dot:
                attend = partial(_attend_parts[(num_items, kv_heads)], group_block=max(_LEAST_DOT, _power_of_2(group)))
            attend(
                query,
                keys,
                values,
                step.block_table,
                step.num_keys,
                parts.rows,
                parts.starts,
                parts.length,
                mixed,
                sums,
                scaling * _LOG2_E,
                step.block_table.stride(0),
                query.stride(0),
                group,
                kv_heads,
                size=size,
                size_block=size_block,
                page_tokens=page_tokens,
                tile=_tile(size_block, query.dtype) // (1 if self.by_dot else 2),
                num_warps=4,
                num_stages=2,
                maxnreg=_MOST_REGISTERS,
            )
            out = query.new_empty(query.shape)
            _combine_parts[(num_rows, heads)](
                mixed,
                sums,
                parts.ends,
                out,
                heads,
                size,
                size_block=size_block,
                parts_block=_PARTS_AT_ONCE,
                num_warps=1,
            )
        return out

    def _divide(self, step: PageStep, kv_heads: int) -> _Parts:
        num_rows = len(step.num_keys)
        wanted = -(-_PROGRAMS_EACH * self.multi_processors // kv_heads)
        num_items = num_rows + wanted  # each sequence has a part that is not full, at most
        made = torch.empty(2 * num_items + num_rows + 1, dtype=torch.int32, device=step.num_keys.device)
        rows, starts, ends, length = torch.split(made, [num_items, num_items, num_rows, 1])
        row_block = _power_of_2(num_rows)
        item_block = max(1, min(_MOST_ITEMS, _MOST_COMPARED // row_block))
        _divide_keys[(triton.cdiv(num_items, item_block),)](
            step.num_keys,
            rows,
            starts,
            ends,
            length,
            num_rows,
            num_items,
            wanted,
            least=_LEAST_PART,
            row_block=row_block,
            item_block=item_block,
            num_warps=4,
        )
        return _Parts(rows, starts, ends, length)


def _power_of_2(number: int) -> int:
    return 1 << (number - 1).bit_length()


def _tile(size_block: int, dtype: torch.dtype) -> int:
    """Keys of a step of the loop: two steps of keys and values fit into the shared memory of every card."""
    return max(16, min(64, (16 << 10) // (size_block * dtype.itemsize)))


def _steps(sizes: Sizes) -> Iterator[Callable[[], object]]:
    spec, size = sizes.spec, sizes.spec.head_dim
    if not size or not spec.num_key_value_heads:
        return
    for num_rows in (1, 64, 1024):
        query = torch.empty(num_rows, spec.num_attention_heads, size, dtype=sizes.dtype, device="meta")
        for page_tokens in (32, 256):
            pages = torch.empty(64, page_tokens, spec.num_key_value_heads, size, dtype=sizes.dtype, device="meta")
            ints = torch.empty(num_rows, 48, dtype=torch.int32, device="meta")
            for by_dot in (True, False) if sizes.dtype.itemsize == 2 else (False,):
                decode = PagedDecode(sizes.multi_processors, by_dot)
                step = PageStep(ints[:, 0].long(), ints, ints[:, 0], ints[:, 0], 1, 48 * page_tokens, decode)
                yield partial(decode, query, pages, pages, step, size**-0.5)


@card_kernel(_steps, any_number=("num_rows", "num_items", "wanted"))
def _divide_keys(  # type: ignore[no-untyped-def]
    num_keys,
    rows,
    starts,
    ends,
    length,
    num_rows,
    num_items,
    wanted,
    least: tl.constexpr,
    row_block: tl.constexpr,
    item_block: tl.constexpr,
):
    places = tl.arange(0, row_block)
    keys = tl.load(num_keys + places, mask=places < num_rows, other=0)
    part = tl.maximum(tl.cdiv(tl.sum(keys, axis=0), wanted), least)
    part = tl.cdiv(part, least) * least
    parts = tl.cdiv(keys, part)
    ends_of = tl.cumsum(parts, axis=0)
    items = tl.program_id(0) * item_block + tl.arange(0, item_block)
    is_before = ends_of[None, :] <= items[:, None]
    row = tl.sum(is_before.to(tl.int32), axis=1)
    first = tl.sum(tl.where(is_before, parts[None, :], 0), axis=1)
    inside = items < num_items
    tl.store(rows + items, tl.where(row < num_rows, row, -1), mask=inside)
    tl.store(starts + items, (items - first) * part, mask=inside)
    if tl.program_id(0) == 0:
        tl.store(ends + places, ends_of, mask=places < num_rows)
        tl.store(length, part)


@triton.jit
def _bounds(starts, length, num_keys, item, row):  # type: ignore[no-untyped-def]
    """Of the keys of `item`, a part of the sequence `row`."""
    start = tl.load(starts + item)
    return start, tl.minimum(start + tl.load(length), tl.load(num_keys + row))


@triton.jit
def _lines(table, places, inside, page_tokens: tl.constexpr):  # type: ignore[no-untyped-def]
    """Where the keys at `places` of a sequence lie in the pages laid end to end."""
    page = tl.load(table + places // page_tokens, mask=inside, other=0).to(tl.int64)
    return page * page_tokens + places % page_tokens


@card_kernel(_steps, any_number=("table_width", "group", "kv_heads"))
def _attend_parts(  # type: ignore[no-untyped-def]
    query,
    keys,
    values,
    block_table,
    num_keys,
    rows,
    starts,
    length,
    mixed,
    sums,
    factor,
    table_width,
    query_stride,
    group,
    kv_heads,
    group_block: tl.constexpr,
    size: tl.constexpr,
    size_block: tl.constexpr,
    page_tokens: tl.constexpr,
    tile: tl.constexpr,
):
    item = tl.program_id(0)
    kv_head = tl.program_id(1)
    row = tl.load(rows + item)
    if row >= 0:
        start, stop = _bounds(starts, length, num_keys, item, row)
        dims = tl.arange(0, size_block)
        own = tl.arange(0, group_block)
        own_inside = own < group
        mask = own_inside[:, None] & (dims < size)[None, :]
        head = kv_head * group + own
        asked = tl.load(query + row * query_stride + head[:, None] * size + dims[None, :], mask=mask, other=0.0)
        largest = tl.full([group_block], -float("inf"), tl.float32)
        total = tl.zeros([group_block], tl.float32)
        sum_of = tl.zeros([group_block, size_block], tl.float32)
        offsets = tl.arange(0, tile)
        for begin in tl.range(start, stop, tile):
            places = begin + offsets
            inside = places < stop
            line = _lines(block_table + row * table_width, places, inside, page_tokens) * kv_heads + kv_head
            at = line[:, None] * size + dims[None, :]
            is_there = inside[:, None] & (dims < size)[None, :]
            key = tl.load(keys + at, mask=is_there, other=0.0)
            scores = tl.dot(asked, tl.trans(key), input_precision="ieee") * factor
            scores = tl.where(inside[None, :], scores, -float("inf"))
            new_largest = tl.maximum(largest, tl.max(scores, axis=1))
            shares = tl.exp2(scores - new_largest[:, None])
            kept = tl.exp2(largest - new_largest)
            value = tl.load(values + at, mask=is_there, other=0.0)
            total = total * kept + tl.sum(shares, axis=1)
            sum_of = tl.dot(shares.to(value.dtype), value, sum_of * kept[:, None], input_precision="ieee")
            largest = new_largest
        line_of = (item * kv_heads * group + head).to(tl.int64)
        tl.store(mixed + line_of[:, None] * size + dims[None, :], sum_of / total[:, None], mask=mask)
        tl.store(sums + line_of, largest + tl.log2(total), mask=own_inside)


@card_kernel(_steps, any_number=("table_width", "group", "kv_heads"))
def _attend_parts_by_head(  # type: ignore[no-untyped-def]
    query,
    keys,
    values,
    block_table,
    num_keys,
    rows,
    starts,
    length,
    mixed,
    sums,
    factor,
    table_width,
    query_stride,
    group,
    kv_heads,
    size: tl.constexpr,
    size_block: tl.constexpr,
    page_tokens: tl.constexpr,
    tile: tl.constexpr,
):
    """As `_attend_parts` without products of matrices, which round float32, and for which older cards have no units."""
    item = tl.program_id(0)
    head = tl.program_id(1)
    row = tl.load(rows + item)
    if row >= 0:
        start, stop = _bounds(starts, length, num_keys, item, row)
        dims = tl.arange(0, size_block)
        mask = dims < size
        asked = tl.load(query + row * query_stride + head * size + dims, mask=mask, other=0.0).to(tl.float32)
        largest = -float("inf")
        total = 0.0
        sum_of = tl.zeros([size_block], tl.float32)
        offsets = tl.arange(0, tile)
        for begin in tl.range(start, stop, tile):
            places = begin + offsets
            inside = places < stop
            line = _lines(block_table + row * table_width, places, inside, page_tokens) * kv_heads + head // group
            at = line[:, None] * size + dims[None, :]
            is_there = inside[:, None] & mask[None, :]
            key = tl.load(keys + at, mask=is_there, other=0.0).to(tl.float32)
            scores = tl.where(inside, tl.sum(key * asked[None, :], axis=1) * factor, -float("inf"))
            new_largest = tl.maximum(largest, tl.max(scores, axis=0))
            shares = tl.exp2(scores - new_largest)
            kept = tl.exp2(largest - new_largest)
            value = tl.load(values + at, mask=is_there, other=0.0).to(tl.float32)
            total = total * kept + tl.sum(shares, axis=0)
            sum_of = sum_of * kept + tl.sum(value * shares[:, None], axis=0)
            largest = new_largest
        line_of = (item * kv_heads * group + head).to(tl.int64)
        tl.store(mixed + line_of * size + dims, sum_of / total, mask=mask)
        tl.store(sums + line_of, largest + tl.log2(total))


@card_kernel(_steps)
def _combine_parts(  # type: ignore[no-untyped-def]
    mixed, sums, ends, out, heads, size, size_block: tl.constexpr, parts_block: tl.constexpr
):
    row = tl.program_id(0)
    head = tl.program_id(1)
    first = 0
    if row > 0:
        first = tl.load(ends + row - 1)
    last = tl.load(ends + row)
    dims = tl.arange(0, size_block)
    largest = -float("inf")
    total = 0.0
    sum_of = tl.zeros([size_block], tl.float32)
    for begin in tl.range(first, last, parts_block):
        items = begin + tl.arange(0, parts_block)
        inside = items < last
        line = (items * heads + head).to(tl.int64)
        part_sums = tl.load(sums + line, mask=inside, other=-float("inf"))
        parts = tl.load(
            mixed + line[:, None] * size + dims[None, :], mask=inside[:, None] & (dims < size)[None, :], other=0.0
        )
        new_largest = tl.maximum(largest, tl.max(part_sums, axis=0))
        weights = tl.exp2(part_sums - new_largest)
        kept = tl.exp2(largest - new_largest)
        total = total * kept + tl.sum(weights, axis=0)
        sum_of = sum_of * kept + tl.sum(parts * weights[:, None], axis=0)
        largest = new_largest
    at = (row * heads + head).to(tl.int64) * size + dims
    tl.store(out + at, (sum_of / total).to(out.dtype.element_ty), mask=dims < size)
