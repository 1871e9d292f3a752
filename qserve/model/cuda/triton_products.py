"""Products of few rows by weights in 8 and 4 bits, in Triton: each weight is read once, as it is held.

A program has some outputs and walks along the inputs; weights are the left operand, so that they fill the matrix units
and the rows are their short side. Sums are in float32. Codes of int8 are exact in 16 bit, and their scale is applied to
the sum; what stands behind a code of 4 bits is rounded to the rows' dtype, as it is where a weight is unpacked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import torch
import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]

from qserve.core.dimensions import tensors_of
from qserve.engines.transformers.kernels.quantized_products import ROW_TILES, row_tile_of
from qserve.model.cuda.kernels import Sizes, card_kernel
from qserve.model.cuda.weights import FourBitWeight, Int8Weight, Weight

__all__ = ["multi_processors_of", "output_block", "product"]

# Of weights and rows that one step of a program's walk loads; four such steps are on their way at once.
_STEP_BYTES, _STEPS = 16384, 4
# Of codes of 4 bits, that a program holds unpacked at once.
_MOST_PAIRS = 2048
_OUTPUT_BLOCKS = (64, 32, 16)
# Outputs and inputs of a step for one row, without matrix units: small programs, several on each multiprocessor, whose
# loads cover one another's latency.
_ONE_ROW = (8, 1024)
# Programs for each multiprocessor, in fifths: fewer leave some of them without work.
_PROGRAMS_OF_5 = 6
_FOR_CPU = 4
# Codes that share a scale, as bitsandbytes makes them.
_SCALE_BLOCK = 64


def product(rows: torch.Tensor, weight: Weight, bias: torch.Tensor | None) -> torch.Tensor:
    """`rows` [few, inputs] times the transposed weight, and `bias`: [few, outputs] in the dtype of `rows`."""
    with torch.cuda.device_of(rows):  # type: ignore[no-untyped-call]
        return _product(rows, weight, bias, multi_processors_of(rows.device))


def _product(rows: torch.Tensor, weight: Weight, bias: torch.Tensor | None, multi_processors: int) -> torch.Tensor:
    out = rows.new_empty(len(rows), weight.outputs)
    tile, block = row_tile_of(len(rows)), output_block(weight.outputs, multi_processors)
    assert tile is not None, f"{len(rows)} rows: a kernel takes {ROW_TILES[-1]} at most"
    if isinstance(weight, Int8Weight):
        _launch_int8(rows, weight, bias, out, int8_constants(tile, block, rows.element_size()))
    else:
        assert isinstance(weight, FourBitWeight)
        sizes = four_bit_constants(max(ROW_TILES[1], tile), block, rows.element_size(), weight.block)
        _launch_four_bit(rows, weight, bias, out, sizes)
    return out


def int8_constants(tile: int, block: int, element_bytes: int) -> dict[str, int]:
    """Sizes of a program of the int8 kernel: rows, outputs, and inputs of a step."""
    if tile == 1:
        return {"tile": tile, "block": _ONE_ROW[0], "step": _ONE_ROW[1]}
    return {"tile": tile, "block": block, "step": _power_of_2(_STEP_BYTES // (block + element_bytes * tile), 32, 512)}


def four_bit_constants(tile: int, block: int, element_bytes: int, scale_block: int) -> dict[str, int]:
    """As `int8_constants`; a step in bytes of two codes, and the scales of a row in it."""
    longest = min(4 * block, _MOST_PAIRS // block)  # longer steps spill
    step = _power_of_2(_STEP_BYTES // (block + 2 * element_bytes * tile), 32, longest)
    groups = max(1, 2 * step // scale_block)
    return {"tile": tile, "block": block, "step": step, "groups": groups, "scale_block": scale_block}


def _launch_int8(
    rows: torch.Tensor, weight: Int8Weight, bias: torch.Tensor | None, out: torch.Tensor, sizes: dict[str, int]
) -> None:
    _int8_product[(triton.cdiv(weight.outputs, sizes["block"]),)](
        rows,
        weight.codes,
        weight.scales,
        weight.scales if bias is None else bias,
        out,
        len(rows),
        weight.outputs,
        weight.inputs,
        has_bias=bias is not None,
        **sizes,
        stages=_STEPS,
        num_warps=_num_warps(sizes),
        num_stages=_STEPS,
    )


def _launch_four_bit(
    rows: torch.Tensor, weight: FourBitWeight, bias: torch.Tensor | None, out: torch.Tensor, sizes: dict[str, int]
) -> None:
    code, scales, offsets = weight.nested or (weight.code, weight.scales, weight.code)
    second, third = (*weight.later_starts, weight.outputs, weight.outputs)[:2]
    assert len(weight.later_starts) <= 2, f"{len(weight.part_rows)} parts: the kernel takes three"
    _four_bit_product[(triton.cdiv(weight.outputs, sizes["block"]),)](
        rows,
        weight.packed,
        weight.code,
        weight.scales,
        code,
        scales,
        offsets,
        second,
        third,
        weight.code if bias is None else bias,
        out,
        len(rows),
        weight.outputs,
        weight.inputs,
        is_nested=weight.nested is not None,
        has_bias=bias is not None,
        **sizes,
        num_warps=_num_warps(sizes),
        num_stages=_STEPS,
    )


def _num_warps(sizes: dict[str, int]) -> int:
    """With four, programs of the most rows, and of more rows than outputs, spill registers on some cards."""
    return 8 if sizes["tile"] == ROW_TILES[-1] or sizes["tile"] > sizes["block"] else 4


def output_block(outputs: int, multi_processors: int) -> int:
    """The most outputs of a program with which every multiprocessor has one."""
    enough = _PROGRAMS_OF_5 * multi_processors
    return next((block for block in _OUTPUT_BLOCKS if 5 * (outputs // block) >= enough), _OUTPUT_BLOCKS[-1])


def multi_processors_of(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else _FOR_CPU


def _power_of_2(number: int, least: int, most: int) -> int:
    return int(min(most, max(least, 1 << (number.bit_length() - 1))))


def _int8_products(sizes: Sizes) -> Iterator[Callable[[], object]]:
    for outputs, inputs, has_bias in _matrices(sizes):
        weight = Int8Weight(_meta(outputs, inputs, dtype=torch.int8), _meta(outputs))
        for tile in ROW_TILES:
            yield partial(_example, tile, weight, has_bias, sizes)


def _four_bit_products(sizes: Sizes) -> Iterator[Callable[[], object]]:
    nested = (_meta(256), _meta(1), _meta(1))
    for outputs, inputs, has_bias in _matrices(sizes):
        packed, blocks = _meta(outputs * inputs // 2, dtype=torch.uint8), outputs * inputs // _SCALE_BLOCK
        for scales, deeper in ((_meta(blocks, dtype=torch.uint8), nested), (_meta(blocks), None)):
            weight = FourBitWeight("nf4", packed, _meta(16), scales, deeper, _SCALE_BLOCK, inputs)
            for tile in ROW_TILES[1:]:  # one row takes the program of sixteen
                yield partial(_example, tile, weight, has_bias, sizes)


def _matrices(sizes: Sizes) -> Iterator[tuple[int, int, bool]]:
    """Outputs, inputs, and whether there is a bias, of all that bitsandbytes would hold of a model."""
    tensors = tensors_of(replace(sizes.spec, quantization=None))
    biased = {tensor.name.removesuffix("bias") for tensor in tensors if tensor.name.endswith(".bias")}
    for tensor in tensors:
        if tensor.role in ("linear", "expert") and len(tensor.shape) == 2 and not tensor.shape[1] % _SCALE_BLOCK:
            yield *tensor.shape, tensor.name.removesuffix("weight") in biased


def _example(num_rows: int, weight: Weight, has_bias: bool, sizes: Sizes) -> None:
    bias = _meta(weight.outputs, dtype=sizes.dtype) if has_bias else None
    _product(_meta(num_rows, weight.inputs, dtype=sizes.dtype), weight, bias, sizes.multi_processors)


def _meta(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


@card_kernel(_int8_products, any_number=("num_rows",))
def _int8_product(  # type: ignore[no-untyped-def]
    rows,
    codes,
    scales,
    bias,
    out,
    num_rows,
    outputs,
    inputs,
    has_bias: tl.constexpr,
    tile: tl.constexpr,
    block: tl.constexpr,
    step: tl.constexpr,
    stages: tl.constexpr,
):
    own = tl.program_id(0) * block + tl.arange(0, block)
    is_own = own < outputs
    places = tl.arange(0, step)
    weights = codes + own.to(tl.int64)[:, None] * inputs + places[None, :]
    scale = tl.load(scales + own, mask=is_own, other=0.0)
    if has_bias:  # noqa: SIM108  # Triton compiles one of the two
        added = tl.load(bias + own, mask=is_own, other=0.0).to(tl.float32)
    else:
        added = tl.zeros([block], tl.float32)
    if tile == 1:
        total = tl.zeros([block, step], tl.float32)
        # The stages are said here: without a product of matrices, Triton launches no loads ahead by itself.
        for start in tl.range(0, inputs, step, num_stages=stages):
            inside = start + places < inputs
            held = tl.load(weights + start, mask=is_own[:, None] & inside[None, :], other=0)
            row = tl.load(rows + start + places, mask=inside, other=0.0)
            total += held.to(tl.float32) * row.to(tl.float32)[None, :]
        answer = tl.sum(total, axis=1) * scale + added
        tl.store(out + own, answer.to(out.dtype.element_ty), mask=is_own)
    else:
        row = tl.arange(0, tile)
        is_row = row < num_rows
        totals = tl.zeros([block, tile], tl.float32)
        for start in range(0, inputs, step):
            inside = start + places < inputs
            held = tl.load(weights + start, mask=is_own[:, None] & inside[None, :], other=0)
            values = tl.load(
                rows + row[None, :] * inputs + (start + places)[:, None],
                mask=is_row[None, :] & inside[:, None],
                other=0.0,
            )
            totals += tl.dot(held.to(values.dtype), values, input_precision="ieee")
        answers = totals * scale[:, None] + added[:, None]
        target = out + row[None, :] * outputs + own[:, None]
        tl.store(target, answers.to(out.dtype.element_ty), mask=is_own[:, None] & is_row[None, :])


@card_kernel(_four_bit_products, any_number=("num_rows", "nested_scales", "offsets", "second_start", "third_start"))
def _four_bit_product(  # type: ignore[no-untyped-def]
    rows,
    packed,
    code,
    scales,
    nested_code,
    nested_scales,
    offsets,
    second_start,
    third_start,
    bias,
    out,
    num_rows,
    outputs,
    inputs,
    is_nested: tl.constexpr,
    has_bias: tl.constexpr,
    tile: tl.constexpr,
    block: tl.constexpr,
    step: tl.constexpr,
    groups: tl.constexpr,
    scale_block: tl.constexpr,
):
    own = tl.program_id(0) * block + tl.arange(0, block)
    is_own = own < outputs
    places = tl.arange(0, step)  # bytes, of two codes each
    group = tl.arange(0, groups)
    row = tl.arange(0, tile)
    is_row = row < num_rows
    first_of_row = own.to(tl.int64)[:, None] * inputs
    half = tl.multiple_of(inputs // 2, 16)  # a block of scales divides `inputs`: loads of 16 bytes
    packed_rows = packed + own.to(tl.int64)[:, None] * half
    totals = tl.zeros([block, tile], tl.float32)
    if is_nested:
        part = (own >= second_start).to(tl.int32) + (own >= third_start).to(tl.int32)
        offset = tl.load(offsets + part, mask=is_own, other=0.0)
    # `gather` reads it in shared memory. As a load in the loop, four bytes would be copied ahead for every code.
    table = tl.load(code + tl.arange(0, 16))
    both = tl.arange(0, 2 * step)
    for start in range(0, half, step):
        inside = start + places < half
        is_held = is_own[:, None] & inside[None, :]
        pair = tl.load(packed_rows + (start + places)[None, :], mask=is_held, other=0).to(tl.int32)
        in_row = 2 * start + group * scale_block
        is_scale = is_own[:, None] & (in_row < inputs)[None, :]
        place = (first_of_row + in_row[None, :]) // scale_block
        scale = tl.load(scales + place, mask=is_scale, other=0)
        if is_nested:
            wide = tl.load(nested_code + scale.to(tl.int32), mask=is_scale, other=0.0)
            scale = wide * tl.load(nested_scales + place // 256, mask=is_scale, other=0.0) + offset[:, None]
        along = 2 * start + both
        is_value = is_row[:, None] & (along < inputs)[None, :]
        values = tl.load(rows + row[:, None] * inputs + along[None, :], mask=is_value, other=0.0)
        evens, odds = tl.split(tl.reshape(values, [tile, step, 2]))
        upper = _scaled(tl.gather(table, tl.reshape(pair >> 4, [block * step]), axis=0), scale, block, step, groups)
        lower = _scaled(tl.gather(table, tl.reshape(pair & 15, [block * step]), axis=0), scale, block, step, groups)
        totals += tl.dot(upper.to(evens.dtype), tl.trans(evens), input_precision="ieee")
        totals += tl.dot(lower.to(odds.dtype), tl.trans(odds), input_precision="ieee")
    if has_bias:
        totals += tl.load(bias + own, mask=is_own, other=0.0).to(tl.float32)[:, None]
    target = out + row[None, :] * outputs + own[:, None]
    tl.store(target, totals.to(out.dtype.element_ty), mask=is_own[:, None] & is_row[None, :])


@triton.jit
def _scaled(values, scale, block: tl.constexpr, step: tl.constexpr, groups: tl.constexpr):  # type: ignore[no-untyped-def]
    parts = tl.reshape(values, [block, groups, step // groups]) * scale[:, :, None]
    return tl.reshape(parts, [block, step])
