"""A layer's experts by grouped products in fp8, in Triton: two launches of ours and four of torch's, for any routing.

Rows are sorted by expert on the device, and no number comes to the host. A program has some outputs of one expert and a
tile of its rows; which expert that is it finds by where the experts' rows end. As many tiles are launched as the worst
routing has (`most_tiles`), and those left over end at once: shapes depend on the number of rows alone, as a CUDA graph
needs them. An expert without rows is not read. One with rows is read once for each tile of them: once where they fill
no more than one, and after that rather out of the card's cache.

Rounded to the rows' dtype are gate's SiLU times up, an expert's answer times its share, and the sum of a token's
answers, each once. All between is in float32; codes are exact in 16 bit, and scales are applied to sums.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch
import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]

from qserve.engines.transformers.kernels.quantized_products import experts_rows
from qserve.model.cuda.kernels import Sizes, card_kernel
from qserve.model.cuda.triton_products import multi_processors_of, output_block
from qserve.model.fp8.routing import TILES, GroupedWeight, most_tiles, tile_of
from qserve.model.fp8.triton_product import numbers
from qserve.model.fp8.weight import CODES

__all__ = ["grouped"]

_STEP = 128  # inputs: a power of two that divides the columns of a block
# By the rows of a tile: outputs of a program, at most; inputs of a step; warps; steps whose loads are under way.
_SIZES = {16: (64, 128, 4, 4), 32: (64, 64, 4, 4), 64: (128, 64, 8, 3)}
# Rows of gate and of up take turns: a thread then has both numbers of a pair, as matrix units lay out their sums.
_TURN = 8


def grouped(
    states: torch.Tensor,
    chosen: torch.Tensor,
    shares: torch.Tensor,
    upper: GroupedWeight,
    down: GroupedWeight,
    tiles: tuple[int, ...] = TILES,
) -> torch.Tensor:
    """`states` [tokens, hidden], experts of each token and their shares [tokens, k] to [tokens, hidden].

    `upper`: gate above up; `tiles`: of rows, those that may be taken. So many rows at a time that what is between the
    products is bounded (`experts_rows`). Raises ValueError for blocks of columns that no step divides.
    """
    with torch.cuda.device_of(states):  # type: ignore[no-untyped-call]
        return _grouped(states, chosen, shares, (upper, down), tiles, multi_processors_of(states.device))


@dataclass(frozen=True)
class _Routing:
    """Pairs of a token and one of its experts.

    Attributes:
        order: int64 [pairs], sorted by expert: which of them it is, as tokens have chosen.
        ends: int32 [experts], of each in `order`.
        shares: [pairs], as tokens have chosen.
        top: experts of a token.
        tile: rows of a program.
        multi_processors: of the card.

    """

    order: torch.Tensor
    ends: torch.Tensor
    shares: torch.Tensor
    top: int
    tile: int
    multi_processors: int


def _grouped(
    states: torch.Tensor,
    chosen: torch.Tensor,
    shares: torch.Tensor,
    weights: tuple[GroupedWeight, GroupedWeight],
    tiles: tuple[int, ...],
    multi_processors: int,
) -> torch.Tensor:
    upper, down = weights
    num_tokens, top = chosen.shape
    every = torch.arange(upper.experts, device=chosen.device)
    answer = torch.empty_like(states, memory_format=torch.contiguous_format)
    num = experts_rows(upper.inputs, down.inputs, top, states.element_size())
    for start in range(0, num_tokens, num):
        own = slice(start, start + num)
        experts, order = chosen[own].flatten().sort()
        ends = torch.searchsorted(experts, every, right=True, out_int32=True)
        tile = tile_of(len(order), upper.experts, tiles)
        routing = _Routing(order, ends, shares[own].flatten(), top, tile, multi_processors)
        inner = _product(states[own].contiguous(), routing, upper, is_upper=True)
        answers = _product(inner, routing, down, is_upper=False)
        torch.sum(answers.view(-1, top, upper.inputs), 1, out=answer[own])
    return answer


def _product(states: torch.Tensor, routing: _Routing, weight: GroupedWeight, *, is_upper: bool) -> torch.Tensor:
    """[pairs, outputs]: of `upper` sorted by expert, of down as tokens have chosen."""
    num_pairs, tile = len(routing.order), routing.tile
    columns, halves = weight.block[1], 2 if is_upper else 1
    if columns % _STEP and columns != weight.inputs:
        raise ValueError(f"blocks of {columns} columns: the kernel takes multiples of {_STEP}")
    outputs = weight.outputs // halves
    num_tiles = most_tiles(num_pairs, weight.experts, tile)
    lanes, step, num_warps, num_stages = _SIZES[tile]
    if tile < TILES[-1]:
        lanes = output_block(weight.outputs * num_tiles, routing.multi_processors)
    out = states.new_empty(num_pairs, outputs)
    _fp8_experts[(triton.cdiv(outputs, lanes // halves), num_tiles)](
        states,
        weight.codes.view(torch.uint8),
        weight.scales,
        routing.order,
        routing.ends,
        routing.shares,
        out,
        weight.experts,
        routing.top,
        outputs,
        weight.inputs,
        weight.block[0],
        columns,
        weight.scales.shape[1] // halves,
        weight.scales.shape[2],
        halves=halves,
        experts_block=triton.next_power_of_2(weight.experts),
        tile=tile,
        lanes=lanes,
        step=step,
        turn=_TURN,
        num_warps=num_warps,
        num_stages=num_stages,
    )
    return out


def _layers(sizes: Sizes) -> Iterator[Callable[[], object]]:
    """A layer's experts of a model that has some, for a row and for as many as fill each tile; both kinds of scales."""
    moe = sizes.spec.moe
    if moe is None:
        return
    hidden, inner, num = sizes.spec.hidden_size, moe.moe_intermediate_size, moe.num_experts
    for by_row in (True, False):
        upper, down = (
            _meta_weight(num, outputs, inputs, (1, inputs) if by_row else (_STEP, _STEP))
            for outputs, inputs in ((2 * inner, hidden), (hidden, inner))
        )
        top = moe.num_experts_per_tok
        for tokens in (1, *(-(-tile * num // top) for tile in TILES)):
            yield partial(_example, tokens, top, upper, down, sizes)


def _meta_weight(experts: int, outputs: int, inputs: int, block: tuple[int, int]) -> GroupedWeight:
    scales = torch.empty(experts, -(-outputs // block[0]), -(-inputs // block[1]), device="meta")
    return GroupedWeight(torch.empty(experts, outputs, inputs, dtype=CODES, device="meta"), scales, block)


def _example(tokens: int, top: int, upper: GroupedWeight, down: GroupedWeight, sizes: Sizes) -> None:
    states = torch.empty(tokens, upper.inputs, dtype=sizes.dtype, device="meta")
    chosen = torch.empty(tokens, top, dtype=torch.int64, device="meta")
    _grouped(states, chosen, states.new_empty(tokens, top), (upper, down), TILES, sizes.multi_processors)


# Shares of a later piece of the rows begin anywhere.
_ANY = ("shares", "experts", "top", "scale_rows", "scale_columns", "half_scales", "scales_a_row")


@card_kernel(_layers, any_number=_ANY)
def _fp8_experts(  # type: ignore[no-untyped-def]
    states,
    codes,
    scales,
    order,
    ends,
    shares,
    out,
    experts,
    top,
    outputs,
    inputs,
    scale_rows,
    scale_columns,
    half_scales,
    scales_a_row,
    halves: tl.constexpr,
    experts_block: tl.constexpr,
    tile: tl.constexpr,
    lanes: tl.constexpr,
    step: tl.constexpr,
    turn: tl.constexpr,
):
    # The expert of this tile: the first by which so many tiles are passed.
    every = tl.arange(0, experts_block)
    is_one = every < experts
    end = tl.load(ends + every, mask=is_one, other=0)
    begin = tl.load(ends + every - 1, mask=is_one & (every > 0), other=0)
    num_tiles = tl.where(is_one, (end - begin + tile - 1) // tile, 0)
    passed = tl.cumsum(num_tiles, axis=0)
    number = tl.program_id(1)
    expert = tl.sum((passed <= number).to(tl.int32), axis=0)
    if expert >= experts:
        return
    is_own = every == expert
    before = tl.sum(tl.where(is_own, passed - num_tiles, 0), axis=0)
    row = tl.sum(tl.where(is_own, begin, 0), axis=0) + (number - before) * tile + tl.arange(0, tile)
    is_row = row < tl.sum(tl.where(is_own, end, 0), axis=0)
    pair = tl.load(order + row, mask=is_row, other=0)

    lane = tl.arange(0, lanes)
    half = (lane // turn) % halves
    output = tl.program_id(0) * (lanes // halves) + lane // (turn * halves) * turn + lane % turn
    is_output = output < outputs
    held_row = expert.to(tl.int64) * (halves * outputs) + half * outputs + output
    scale_row = expert * (halves * half_scales) + half * half_scales + output // scale_rows
    weights, of_row = codes + held_row * inputs, scales + scale_row * scales_a_row
    if halves == 2:  # noqa: SIM108  # Triton compiles one of the two
        source = states + (pair // top) * inputs
    else:
        source = states + row.to(tl.int64) * inputs
    places = tl.arange(0, step)
    totals = tl.zeros([lanes, tile], tl.float32)
    for start in range(0, inputs, step):
        inside = start + places < inputs
        held = tl.load(weights[:, None] + (start + places)[None, :], mask=is_output[:, None] & inside[None, :], other=0)
        values = tl.load(source[None, :] + (start + places)[:, None], mask=is_row[None, :] & inside[:, None], other=0.0)
        scale = tl.load(of_row + start // scale_columns, mask=is_output, other=0.0)
        totals += tl.dot(numbers(held).to(values.dtype), values, input_precision="ieee") * scale[:, None]
    if halves == 2:
        both = tl.permute(tl.reshape(totals, [lanes // (2 * turn), 2, turn, tile]), (0, 2, 3, 1))
        gate, up = tl.split(both)
        said = tl.reshape(gate / (1.0 + tl.exp(-gate)) * up, [lanes // 2, tile])
        own = tl.program_id(0) * (lanes // 2) + tl.arange(0, lanes // 2)
        target = out + row.to(tl.int64)[None, :] * outputs + own[:, None]
        tl.store(target, said.to(out.dtype.element_ty), mask=(own < outputs)[:, None] & is_row[None, :])
    else:
        share = tl.load(shares + pair, mask=is_row, other=0.0).to(tl.float32)
        said = (totals * share[None, :]).to(out.dtype.element_ty)
        target = out + (pair * outputs)[None, :] + output[:, None]
        tl.store(target, said, mask=is_output[:, None] & is_row[None, :])
