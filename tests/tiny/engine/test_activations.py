"""Activations rounded to 8 bits: how far products are off then, where outliers are, and what stays exact."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from qserve.model.cpu import build
from qserve.model.cpu.activations import round_activations, with_int8_activations
from qserve.model.cpu.linear import CompiledLinear
from qserve.model.cpu.matrix import Matrix, bfloat16_matrix, codes_matrix, has_int8_activations, int8_matrix
from tests.tiny.engine.compilers import HAS_VNNI, compiled_by

pytestmark = pytest.mark.skipif(
    build.why_none() is not None or not has_int8_activations(), reason="neither AVX512-VNNI nor AVX2 here"
)
POORER = ["without AVX512-BF16", "AVX-VNNI", "without AVX512"]

OUT, WIDTH = 100, 512
# Of NF4, with the same rounding of its values as any table that is not made of integers.
VALUES = torch.linspace(-1, 1, 16) ** 3
FORMATS = ["int8", "int4", "nf4", "int8 in groups", "groups of 32"]
ROWS = [1, 3, 8, 13, 150]
SMALL = ["int4", "groups of 32"]
ROUNDED = FORMATS if HAS_VNNI else SMALL


def codes(most: int) -> torch.Tensor:
    return torch.randint(0, most, (OUT, WIDTH), dtype=torch.uint8, generator=torch.Generator().manual_seed(most))


def matrix_of(name: str) -> Matrix:
    blocks = WIDTH // (32 if name == "groups of 32" else 128)
    scales, offsets = torch.rand(OUT, blocks) + 0.1, torch.randn(OUT, blocks)
    order = torch.randperm(WIDTH, generator=torch.Generator().manual_seed(3)).int()
    made = {
        "int8": lambda: int8_matrix(codes(255).int().sub(127).to(torch.int8), torch.rand(OUT), torch.randn(OUT)),
        "int4": lambda: codes_matrix("int4", codes(16), torch.arange(16) - 8.0, scales, offsets),
        "nf4": lambda: codes_matrix("nf4", codes(16), VALUES, scales),
        "int8 in groups": lambda: codes_matrix(
            "int8", codes(256), torch.arange(256) - 128.0, scales, offsets, None, order
        ),
        "groups of 32": lambda: codes_matrix("int4", codes(16), torch.arange(16) - 8.0, scales),
    }[name]()
    assert made is not None
    return made


def rounded(matrix: Matrix) -> Matrix:
    made = with_int8_activations(matrix)
    assert made is not None
    return made


def relative_error(matrix: Matrix, states: torch.Tensor, ordinary: torch.Tensor) -> float:
    """Of the product with rounded `states`, beside the size of the product with `ordinary` ones."""
    weight = matrix.dense().double()
    bias = 0 if matrix.bias is None else matrix.bias.double()
    error = rounded(matrix).product(states).double() - states.double() @ weight.T - bias
    return float(error.norm() / (ordinary.double() @ weight.T).norm())


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("rows", ROWS)
def test_products_are_within_one_per_cent(name: str, rows: int) -> None:
    matrix, states = matrix_of(name), torch.randn(rows, WIDTH).bfloat16()
    assert (3e-3 if name in ROUNDED else 1e-3) < relative_error(matrix, states, states) < 1e-2


@pytest.mark.parametrize("name", FORMATS)
def test_outliers_take_nothing_from_the_others(name: str) -> None:
    """One of each group is 40 times the others: in one plane of 8 bits these would be off by a tenth."""
    matrix, ordinary = matrix_of(name), torch.randn(13, WIDTH).bfloat16()
    states = ordinary.clone()
    states[:, 5::32] *= 40
    assert relative_error(matrix, states, ordinary) < (4e-2 if name == "nf4" else 2e-2)


@pytest.mark.parametrize("name", FORMATS)
def test_what_is_no_number_stays_none_and_in_its_row(name: str) -> None:
    matrix, states = rounded(matrix_of(name)), torch.randn(20, WIDTH).bfloat16()
    alone = matrix.product(states)
    states[1, 7], states[5, 9] = float("nan"), float("inf")
    found = matrix.product(states)
    assert found[1].isnan().all()
    assert not found[5].isfinite().any()
    others = [row for row in range(20) if row not in (1, 5)]
    assert torch.equal(found[others], alone[others])


@pytest.mark.parametrize("compiler", POORER)
def test_poorer_processors_multiply_the_same_integers(compiler: str) -> None:
    """To the last bit but where the order of a few sums in fp32 shows: the integers and their sums are exact.

    One input in 32 is so large that most groups have a rest; the first row is at the limit of 8 bits. What AVX2 alone
    does not round is as near as the rounding.
    """
    cases = [(name, rows, loud) for name in FORMATS for rows in (3, 8, 31) for loud in (1.0, 40.0)]
    cases += [("int8", 2, 40.0), ("int8", 1, 1.0)]
    torch.manual_seed(0)
    asked = [torch.randn(rows, WIDTH).bfloat16() for _, rows, _ in cases]
    for states, (_, _, loud) in zip(asked, cases, strict=True):
        states[:, 5::32] *= loud
        states[0] = -3.0
    weights = [rounded(matrix_of(name)) for name, _, _ in cases]
    expected = [weight.product(states) for weight, states in zip(weights, asked, strict=True)]
    with compiled_by(compiler):
        for weight, states, known, case in zip(weights, asked, expected, cases, strict=True):
            off = (weight.product(states).double() - known.double()).abs()
            if compiler == "without AVX512" and case[0] not in SMALL and case[1] > 1:  # one row of -3: exact
                assert float(off.norm()) < 2e-2 * float(known.double().norm()), case
                continue
            assert (off <= 2**-7 * known.double().abs() + 1e-5 * known.double().abs().max()).all(), case
            assert float((off == 0).double().mean()) > 0.99, case


@pytest.mark.parametrize("code", [0, 15])
@pytest.mark.parametrize("state", [-3.0, 3.0])
def test_sums_of_the_largest_codes_have_room(code: int, state: float) -> None:
    """All weights of -8 or of 7, and all activations at the limit of 8 bits: AVX2 adds them in 16."""
    every = torch.full((OUT, WIDTH), code, dtype=torch.uint8)
    made = codes_matrix("int4", every, torch.arange(16) - 8.0, torch.ones(OUT, WIDTH // 64))
    assert made is not None
    assert (rounded(made).product(torch.full((5, WIDTH), state).bfloat16()) == (code - 8) * state * WIDTH).all()


def test_integers_of_4_bit_keep_their_values_and_nf4_is_near() -> None:
    int4, nf4 = rounded(matrix_of("int4")), rounded(matrix_of("nf4"))
    for made, most in ((int4, 0.0), (nf4, 5e-3)):
        assert made.levels is not None
        assert made.values is not None
        levels = (made.levels[:16].float() - 128) * made.unit
        assert float((levels - made.values).abs().max()) <= most * float(made.values.abs().max())


def test_layers_of_a_model_that_stay_as_they_are() -> None:
    """bf16 has nothing to gain, FP8's values are no integers."""
    fp8 = codes_matrix("fp8", codes(120), torch.linspace(0, 1, 256).bfloat16().float(), torch.rand(OUT, 4))
    plain = bfloat16_matrix(torch.randn(OUT, WIDTH).bfloat16())
    made = [one for one in (fp8, plain, matrix_of("int8")) if one is not None]
    model = nn.ModuleList(CompiledLinear(one) for one in made)
    assert round_activations(model) == 1
    assert [part.matrix.activation_bits for part in model] == [16, 16, 8]
