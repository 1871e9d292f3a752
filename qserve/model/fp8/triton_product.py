"""A product of few rows by a weight in fp8, in Triton: each code is read once, and the rows stay in 16 bit.

Codes are taken apart by their bits: cards before compute capability 8.9 have no instruction for that, and so one kernel
serves all. They are exact in 16 bit; scales are applied to sums over 128 inputs, or for one row to the numbers.
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
from qserve.model.cuda.triton_products import multi_processors_of, output_block
from qserve.model.fp8.weight import CODES, Fp8Weight

__all__ = ["numbers", "product"]

# Inputs of a step: a power of two that divides the columns of a block.
_STEP = 128
# For one row, without matrix units: small programs, several on each multiprocessor, whose loads cover one another.
_ONE_ROW_OUTPUTS, _ONE_ROW_STEPS = 8, 8
_STAGES = 4


def product(rows: torch.Tensor, weight: Fp8Weight, bias: torch.Tensor | None) -> torch.Tensor:
    """`rows` [few, inputs] times the transposed weight, and `bias`: [few, outputs] in the dtype of `rows`.

    Raises ValueError for blocks of columns that no step divides.
    """
    with torch.cuda.device_of(rows):  # type: ignore[no-untyped-call]
        return _product(rows, weight, bias, multi_processors_of(rows.device))


def _product(rows: torch.Tensor, weight: Fp8Weight, bias: torch.Tensor | None, multi_processors: int) -> torch.Tensor:
    out = rows.new_empty(len(rows), weight.outputs)
    tile, columns = row_tile_of(len(rows)), weight.block[1]
    assert tile is not None, f"{len(rows)} rows: a kernel takes {ROW_TILES[-1]} at most"
    if columns % _STEP and columns != weight.inputs:
        raise ValueError(f"blocks of {columns} columns: the kernel takes multiples of {_STEP}")
    block = _ONE_ROW_OUTPUTS if tile == 1 else output_block(weight.outputs, multi_processors)
    _fp8_product[(triton.cdiv(weight.outputs, block),)](
        rows,
        weight.codes.view(torch.uint8),
        weight.scales,
        weight.scales if bias is None else bias,
        out,
        len(rows),
        weight.outputs,
        weight.inputs,
        weight.block[0],
        columns,
        weight.scales.shape[1],
        has_bias=bias is not None,
        tile=tile,
        block=block,
        step=_STEP,
        steps=_ONE_ROW_STEPS if tile == 1 else 1,
        num_warps=8 if tile == ROW_TILES[-1] else 4,
        num_stages=_STAGES,
    )
    return out


def _products(sizes: Sizes) -> Iterator[Callable[[], object]]:
    """Of all that a checkpoint in fp8 has of a model, with blocks as Qwen's are, and with a scale a row."""
    tensors = tensors_of(replace(sizes.spec, quantization=None))
    biased = {tensor.name.removesuffix("bias") for tensor in tensors if tensor.name.endswith(".bias")}
    for tensor in tensors:
        if tensor.role not in ("linear", "expert") or len(tensor.shape) != 2:
            continue
        outputs, inputs = tensor.shape
        has_bias = tensor.name.removesuffix("weight") in biased
        for rows, columns in ((1, inputs), (128, 128)):
            scales = _meta(-(-outputs // rows), -(-inputs // columns))
            weight = Fp8Weight(_meta(outputs, inputs, dtype=CODES), scales, (rows, columns))
            for tile in ROW_TILES:
                yield partial(_example, tile, weight, has_bias, sizes)


def _example(num_rows: int, weight: Fp8Weight, has_bias: bool, sizes: Sizes) -> None:
    bias = _meta(weight.outputs, dtype=sizes.dtype) if has_bias else None
    _product(_meta(num_rows, weight.inputs, dtype=sizes.dtype), weight, bias, sizes.multi_processors)


def _meta(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


@card_kernel(_products, any_number=("num_rows", "scales", "scale_rows", "scale_columns", "scales_a_row"))
def _fp8_product(  # type: ignore[no-untyped-def]
    rows,
    codes,
    scales,
    bias,
    out,
    num_rows,
    outputs,
    inputs,
    scale_rows,
    scale_columns,
    scales_a_row,
    has_bias: tl.constexpr,
    tile: tl.constexpr,
    block: tl.constexpr,
    step: tl.constexpr,
    steps: tl.constexpr,
):
    own = tl.program_id(0) * block + tl.arange(0, block)
    is_own = own < outputs
    of_own = scales + (own // scale_rows) * scales_a_row
    weights = codes + own.to(tl.int64)[:, None] * inputs
    if has_bias:  # noqa: SIM108  # Triton compiles one of the two
        added = tl.load(bias + own, mask=is_own, other=0.0).to(tl.float32)
    else:
        added = tl.zeros([block], tl.float32)
    if tile == 1:
        places = tl.arange(0, steps * step)
        firsts = tl.arange(0, steps) * step
        total = tl.zeros([block, steps, step], tl.float32)
        for start in range(0, inputs, steps * step):
            inside = start + places < inputs
            held = tl.load(weights + (start + places)[None, :], mask=is_own[:, None] & inside[None, :], other=0)
            row = tl.load(rows + start + places, mask=inside, other=0.0).to(tl.float32)
            first = start + firsts
            is_scale = is_own[:, None] & (first < inputs)[None, :]
            scale = tl.load(of_own[:, None] + (first // scale_columns)[None, :], mask=is_scale, other=0.0)
            parts = tl.reshape(numbers(held) * row[None, :], [block, steps, step])
            total += parts * scale[:, :, None]
        answer = tl.sum(tl.sum(total, axis=2), axis=1) + added
        tl.store(out + own, answer.to(out.dtype.element_ty), mask=is_own)
    else:
        places = tl.arange(0, step)
        row = tl.arange(0, tile)
        is_row = row < num_rows
        totals = tl.zeros([block, tile], tl.float32)
        for start in range(0, inputs, step):
            inside = start + places < inputs
            held = tl.load(weights + (start + places)[None, :], mask=is_own[:, None] & inside[None, :], other=0)
            values = tl.load(
                rows + row[None, :] * inputs + (start + places)[:, None],
                mask=is_row[None, :] & inside[:, None],
                other=0.0,
            )
            scale = tl.load(of_own + start // scale_columns, mask=is_own, other=0.0)
            summed = tl.dot(numbers(held).to(values.dtype), values, input_precision="ieee")
            totals += summed * scale[:, None]
        answers = totals + added[:, None]
        target = out + row[None, :] * outputs + own[:, None]
        tl.store(target, answers.to(out.dtype.element_ty), mask=is_own[:, None] & is_row[None, :])


@triton.jit
def numbers(codes):  # type: ignore[no-untyped-def]
    """Sign, 4 bits of exponent and 3 of fraction, as they lie in 16 bits with 5 of exponent: 256 times too small."""
    wide = codes.to(tl.uint16)
    half = ((wide & 0x80) << 8) | ((wide & 0x7F) << 7)
    return half.to(tl.float16, bitcast=True).to(tl.float32) * 256.0
