"""Weights in the formats that checkpoints store, and products with them: by the best kernels and by portable ones."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator

import pytest
import torch
from bitsandbytes import functional as bitsandbytes
from torch import nn

from qserve.model.cpu import build
from qserve.model.cpu.activations import with_int8_activations
from qserve.model.cpu.linear import CompiledLinear, compiled_from
from qserve.model.cpu.matrix import (
    FEW_ROWS,
    Matrix,
    bfloat16_matrix,
    codes_matrix,
    has_fast_products,
    int8_matrix,
    use_own_threads,
)
from tests.tiny.engine.compilers import COMPILERS, compiled_by

pytestmark = pytest.mark.skipif(build.why_none() is not None, reason=str(build.why_none()))

SHAPES = [(100, 256), (64, 1024)]
FORMATS = ["bfloat16", "int8", "int4", "nf4", "fp8", "int8 in groups"]
FP8_VALUES = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float().nan_to_num()
ROWS = [1, 2, 3, 5, 8, 9, 12, 25, 40]


@pytest.fixture(scope="module", params=COMPILERS, autouse=True)
def compiler(request: pytest.FixtureRequest) -> Iterator[str]:
    """The library as this processor gets it, and as poorer ones do."""
    with compiled_by(request.param):
        yield request.param


def weight_of(shape: tuple[int, int]) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))) / 20


def four_bit(shape: tuple[int, int], kind: str, is_nested: bool) -> tuple[nn.Module, torch.Tensor]:
    """(bitsandbytes' layer, its weight in fp32 as bitsandbytes dequantizes it)."""
    from bitsandbytes.nn import Linear4bit, Params4bit

    packed, state = bitsandbytes.quantize_4bit(weight_of(shape), quant_type=kind, compress_statistics=is_nested)
    layer = Linear4bit(shape[1], shape[0], bias=True, quant_type=kind)
    layer.weight = Params4bit(packed, requires_grad=False, quant_state=state, bnb_quantized=True, quant_type=kind)
    return layer, bitsandbytes.dequantize_4bit(packed, state)


def matrices(shape: tuple[int, int]) -> dict[str, Matrix | None]:
    """One of each format, with a bias where layers have one."""
    weight = weight_of(shape)
    largest = weight.abs().amax(1)
    codes = torch.randint(0, 16, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    scales, offsets = torch.rand(shape[0], shape[1] // 128), torch.randn(shape[0], shape[1] // 128) / 50
    layer, _ = four_bit(shape, "nf4", True)
    made = compiled_from(layer)
    return {
        "bfloat16": bfloat16_matrix(weight.bfloat16(), torch.randn(shape[0])),
        "int8": int8_matrix((weight / largest[:, None] * 127).round().to(torch.int8), largest / 127),
        "int4": codes_matrix("int4", codes, torch.arange(16) - 8.0, scales, offsets),
        "nf4": None if made is None else made.matrix,
        "fp8": codes_matrix("fp8", every_code(shape), FP8_VALUES, scales / 100),
        "int8 in groups": codes_matrix(
            "int8", every_code(shape), torch.arange(256) - 128.0, scales / 100, offsets, None, order_of(shape[1])
        ),
    }


def every_code(shape: tuple[int, int]) -> torch.Tensor:
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(2))


def order_of(width: int) -> torch.Tensor:
    return torch.randperm(width, generator=torch.Generator().manual_seed(3)).int()


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", ["nf4", "fp4"])
@pytest.mark.parametrize("is_nested", [True, False])
def test_4_bit_weights_are_bitsandbytes_to_the_last_bit(shape: tuple[int, int], kind: str, is_nested: bool) -> None:
    layer, stored = four_bit(shape, kind, is_nested)
    compiled = compiled_from(layer)
    assert isinstance(compiled, CompiledLinear)
    assert compiled.matrix.format == kind
    assert torch.equal(compiled.matrix.dense(), stored)


def test_int8_weights_are_codes_times_scales() -> None:
    codes = torch.randint(-128, 128, (70, 128), dtype=torch.int8)
    scales = torch.rand(70)
    made = int8_matrix(codes, scales)
    assert made is not None
    assert torch.equal(made.dense(), codes * scales[:, None])


def test_codes_of_8_bit_are_values_times_scales_in_the_order_of_the_inputs() -> None:
    shape = SHAPES[0]
    codes, order = every_code(shape), order_of(shape[1])
    scales, offsets = torch.rand(shape[0], 8), torch.randn(shape[0], 8)
    made = codes_matrix("int8", codes, torch.arange(256) - 128.0, scales, offsets, None, order)
    assert made is not None
    in_groups = (codes.float() - 128) * scales.repeat_interleave(32, 1) + offsets.repeat_interleave(32, 1)
    assert torch.equal(made.dense()[:, order.long()], in_groups)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", FORMATS)
def test_products_are_within_bf16_rounding(shape: tuple[int, int], name: str) -> None:
    """Of the product in fp64 with the stored weights, also where one activation is 500 times the others."""
    matrix = matrices(shape)[name]
    assert matrix is not None
    weight = matrix.dense().double()
    for rows in ROWS:
        states = torch.randn(rows, shape[1]).bfloat16()
        states[:, 3] *= 500
        exact = states.double() @ weight.T + (0 if matrix.bias is None else matrix.bias.double())
        # Every term may be rounded to the 8 bits of bf16, and the sum once more; on average that is much less.
        sizes = states.double().abs() @ weight.abs().T
        error = matrix.product(states).double() - exact
        assert (error.abs() <= 2**-8 * (exact.abs() + sizes)).all(), rows
        # A weight's value times its scale is rounded to bf16, and so is the sum: where one term is the sum, both count.
        assert error.norm() <= 2**-8 * exact.norm(), rows


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("activations", ["exact", "int8"])
def test_a_row_is_the_same_to_the_last_bit_beside_others(name: str, activations: str, compiler: str) -> None:
    """Also where an outlier has a rest, and as the last of them.

    Not of 4 bit and FP8 by AVX-512 with exact activations: up to 8 rows read them as they are stored.
    """
    matrix = matrices(SHAPES[1])[name]
    assert matrix is not None
    if activations == "int8" and (matrix := with_int8_activations(matrix)) is None:
        pytest.skip("never rounded")
    if activations == "exact" and name in ("nf4", "int4", "fp8") and compiler not in ("without AVX512", "plain"):
        pytest.skip("a few rows read it as it is stored")
    rows = torch.randn(140, SHAPES[1][1], generator=torch.Generator().manual_seed(4)).bfloat16()
    rows[::3, 5::64] *= 40
    most = len(rows) if has_fast_products() else FEW_ROWS
    alone = torch.cat([matrix.product(row[None]) for row in rows])
    for num in (2, 3, 7, 8, 9, 12, 16, 17, 31, 32, 33, 48, 64, 129, 140):
        if num <= most:
            assert torch.equal(matrix.product(rows[:num]), alone[:num]), num
            assert torch.equal(matrix.product(rows[-num:]), alone[-num:]), num


@pytest.mark.parametrize("rows", [1, 2, 5, 40])
@pytest.mark.parametrize("code", [0, 15])
def test_sums_of_the_largest_values_have_room(rows: int, code: int) -> None:
    """Where a format's values become integers: weights of -1 or 1 alone, and activations with all bits of bf16."""
    codes = torch.full((64, 256), code, dtype=torch.uint8)
    made = codes_matrix("nf4", codes, torch.linspace(-1, 1, 16) ** 3, torch.ones(64, 4))
    assert made is not None
    states = torch.full((rows, 256), 255 / 128).bfloat16()
    assert (made.product(states) == (1 if code else -1) * 510).all()


@pytest.mark.parametrize("name", FORMATS)
def test_what_is_no_number_stays_none_and_in_its_row(name: str) -> None:
    matrix = matrices(SHAPES[0])[name]
    assert matrix is not None
    for rows in (3, 20):
        states = torch.randn(rows, SHAPES[0][1]).bfloat16()
        alone = matrix.product(states)
        states[1, 7] = float("nan")
        found = matrix.product(states)
        assert found[1].isnan().all()
        assert torch.equal(found[[0, 2]], alone[[0, 2]])


def test_threads_of_our_own_compute_the_same_for_several_callers() -> None:
    """Also for one that finds them busy."""
    every = [made for made in matrices(SHAPES[1]).values() if made is not None]
    states = torch.randn(4, SHAPES[1][1]).bfloat16()
    expected = [made.product(states) for made in every]
    wrong: list[int] = []

    def compute() -> None:
        for _ in range(50):
            wrong.extend(i for i, made in enumerate(every) if not torch.equal(made.product(states), expected[i]))

    library = build.library()
    assert library is not None
    library.use_threads(ctypes.c_long(3))
    try:
        callers = [threading.Thread(target=compute) for _ in range(3)]
        for one in callers:
            one.start()
        for one in callers:
            one.join(60)
        assert not wrong
    finally:
        library.use_threads(ctypes.c_long(0))


def test_threads_come_with_the_first_layer_of_ours() -> None:
    use_own_threads()
    library = build.library()
    assert library is not None
    assert library.num_threads() >= torch.get_num_threads()  # a pool only grows
    library.use_threads(ctypes.c_long(0))


def test_long_inputs_give_many_rows_what_they_give_one() -> None:
    """Tiles take them in slices (`inputs_of_a_slice`): 4160 inputs are no whole number of those, 600 rows of blocks."""
    matrix = bfloat16_matrix(torch.randn(200, 4160).bfloat16())
    assert matrix is not None
    states = torch.randn(600, 4160).bfloat16()
    many = matrix.product(states)
    for row in (0, 63, 64, 511, 512, 599) if has_fast_products() else ():  # else torch multiplies many
        assert torch.equal(many[row], matrix.product(states[row : row + 1])[0]), row
    exact = states.double() @ matrix.dense().double().T
    assert (many.double() - exact).norm() <= 2**-8 * exact.norm()
