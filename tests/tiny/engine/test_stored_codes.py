"""Weights out of GPTQ, AWQ, compressed-tensors and FP8 tensors: those that the formats' definitions say, bit by bit."""

from __future__ import annotations

import itertools

import pytest
import torch

from qserve.errors import BrokenCheckpoint
from qserve.model.cpu import build
from qserve.model.stored.codes import Codes, awq_codes, fp8_codes, gptq_codes, int8_codes, packed_codes
from qserve.model.stored.linear import matrix_of
from tests.tiny.engine.stored_checkpoints import as_awq, gptq_parts

# torch's own, on the first import of its compiler.
pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.script_method:DeprecationWarning")
OUT, IN = 24, 256


def weight_of(seed: int = 0, out: int = OUT, width: int = IN) -> torch.Tensor:
    return torch.randn(out, width, generator=torch.Generator().manual_seed(seed)) / 20 + 0.01


def number(word: int, place: int, bits: int) -> int:
    return (int(word) >> (place * bits)) & ((1 << bits) - 1)


def holds(codes: Codes, expected: torch.Tensor) -> None:
    """In fp32 out of the tensors, and out of the packed form that products read."""
    assert torch.equal(codes.dense(torch.float32), expected)
    if build.why_none() is None:
        matrix = matrix_of(codes, None)
        assert matrix is not None
        assert torch.equal(matrix.dense(), expected)


def gptq_by_definition(parts: dict[str, torch.Tensor], bits: int, is_low: int) -> torch.Tensor:
    """scale · (number - zero): an int32 holds 32 / bits inputs, or zeros of outputs, lowest bits first."""
    count = 32 // bits
    qweight, qzeros, g_idx = parts["qweight"].tolist(), parts["qzeros"].tolist(), parts["g_idx"].tolist()
    scales = parts["scales"].float()
    weight = torch.empty(scales.shape[1], len(g_idx))
    for o, i in itertools.product(range(scales.shape[1]), range(len(g_idx))):
        zero = number(qzeros[g_idx[i]][o // count], o % count, bits) + is_low
        weight[o, i] = scales[g_idx[i], o] * (number(qweight[i // count][o], i % count, bits) - zero)
    return weight


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("group", [32, 64, 128, IN])
@pytest.mark.parametrize("is_mixed", [False, True], ids=["", "act-order"])
def test_gptq(bits: int, group: int, is_mixed: bool) -> None:
    g_idx = torch.arange(IN) // group
    if is_mixed:
        g_idx = g_idx[torch.randperm(IN, generator=torch.Generator().manual_seed(group))]
    for is_symmetric, is_low in itertools.product((True, False), (True, False)):
        parts = gptq_parts(weight_of(), bits, group, g_idx, is_symmetric, is_low)
        codes = gptq_codes(parts, has_low_zeros=is_low)
        holds(codes, gptq_by_definition(parts, bits, int(is_low)))
        assert (codes.order is not None) == (is_mixed and group < IN)
        assert (codes.offsets is None) == is_symmetric
        assert (codes.dense(torch.float32) - weight_of()).abs().max() < (0.03 if bits == 4 else 0.002)


def test_gptq_is_what_gptqmodel_computes() -> None:
    """Its formula in fp16 (nn_modules/qlinear: _dequantize_from_codes): ours, rounded to fp16, to the last bit."""
    g_idx = torch.arange(IN) // 64
    parts = gptq_parts(weight_of(), 4, 64, g_idx, False, False)
    shifts = torch.arange(0, 32, 4, dtype=torch.int32)
    zeros = (parts["qzeros"][:, :, None] >> shifts & 15).reshape(len(parts["qzeros"]), -1).half()
    numbers = (parts["qweight"][:, None, :] >> shifts[None, :, None] & 15).reshape(IN, OUT).half()
    theirs = parts["scales"][g_idx] * (numbers - zeros[g_idx])
    assert torch.equal(gptq_codes(parts, has_low_zeros=False).dense(torch.float16), theirs.T)


def test_a_zero_point_of_zero_in_the_first_format() -> None:
    """Stored one too low it borrows from its neighbour in the word, and the word as a whole gives it back."""
    parts = gptq_parts(weight_of(), 4, 64, torch.arange(IN) // 64, False, False)
    true = parts["qzeros"].clone()
    true[0, 0] &= ~0xF  # output 0 has zero point 0
    stored = true - 0x11111111
    expected = gptq_codes({**parts, "qzeros": true}, has_low_zeros=False)
    assert torch.equal(
        gptq_codes({**parts, "qzeros": stored}, has_low_zeros=True).dense(torch.float32), expected.dense(torch.float32)
    )


@pytest.mark.parametrize("group", [32, 64, 128, IN])
def test_awq(group: int) -> None:
    """Output 8 n + k is the one at place (0, 4, 1, 5, 2, 6, 3, 7)[k] of word n."""
    named = as_awq("x", weight_of(), group)
    parts = {name.removeprefix("x."): tensor for name, tensor in named.items()}
    qweight, qzeros, scales = parts["qweight"].tolist(), parts["qzeros"].tolist(), parts["scales"].float()
    places = (0, 4, 1, 5, 2, 6, 3, 7)
    expected = torch.empty(OUT, IN)
    for o, i in itertools.product(range(OUT), range(IN)):
        code, zero = (number(row[o // 8], places[o % 8], 4) for row in (qweight[i], qzeros[i // group]))
        expected[o, i] = scales[i // group, o] * (code - zero)
    codes = awq_codes(parts)
    holds(codes, expected)
    assert (codes.dense(torch.float32) - weight_of()).abs().max() < 0.03


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("is_symmetric", [True, False])
@pytest.mark.parametrize("group", [32, 128, None], ids=["32", "128", "channel"])
@pytest.mark.parametrize("is_mixed", [False, True], ids=["", "act-order"])
def test_compressed_tensors_packed(bits: int, is_symmetric: bool, group: int | None, is_mixed: bool) -> None:
    """What the package itself compresses, as it decompresses it: its arithmetic is that of the scales' dtype."""
    from compressed_tensors.compressors.pack_quantized.base import PackedQuantizationCompressor
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme

    width = group or IN
    args = QuantizationArgs(
        num_bits=bits,
        type="int",
        symmetric=is_symmetric,
        strategy="group" if group else "channel",
        group_size=group,
        **({"actorder": "group"} if is_mixed and group else {}),
    )
    scheme = QuantizationScheme(targets=["Linear"], weights=args)
    weight, most = weight_of().bfloat16(), 1 << (bits - 1)
    groups = weight.float().reshape(OUT, -1, width)
    state = {"weight": weight, "weight_scale": (groups.abs().amax(2) / (most - 1)).bfloat16()}
    if is_mixed and group:
        order = torch.randperm(IN, generator=torch.Generator().manual_seed(3))
        state["weight_g_idx"] = (torch.arange(IN) // width)[order].int()
    if not is_symmetric:
        state["weight_zero_point"] = torch.randint(-3, 4, state["weight_scale"].shape, dtype=torch.int8)
    stored = PackedQuantizationCompressor.compress(state, scheme)
    theirs = PackedQuantizationCompressor.decompress(stored, scheme)["weight"]
    codes = packed_codes(stored)
    assert torch.equal(codes.dense(torch.bfloat16), theirs)
    holds(codes, codes.dense(torch.float32))


@pytest.mark.parametrize("is_symmetric", [True, False])
def test_compressed_tensors_int8(is_symmetric: bool) -> None:
    weight = torch.randint(-128, 128, (OUT, IN), dtype=torch.int8)
    scales, zeros = torch.rand(OUT, 1).bfloat16(), torch.randint(-9, 9, (OUT, 1), dtype=torch.int8)
    parts = {"weight": weight, "weight_scale": scales} | ({} if is_symmetric else {"weight_zero_point": zeros})
    shift = 0 if is_symmetric else zeros.float()
    holds(int8_codes(parts), (weight.float() - shift) * scales.float())


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
@pytest.mark.parametrize(
    ("shape", "block"), [((1,), None), ((OUT,), None), ((OUT, 1), None), ((2, 2), (16, 128)), ((3, 3), (8, 96))]
)
def test_fp8(dtype: torch.dtype, shape: tuple[int, ...], block: tuple[int, int] | None) -> None:
    """One number, one a row, one a block, of which the last may be cut off; every value of the format but NaN."""
    stored = torch.arange(OUT * IN).remainder(256).to(torch.uint8).view(dtype).reshape(OUT, IN)
    stored = torch.where(stored.float().isfinite(), stored.float(), 0.0).to(dtype)
    scales = torch.rand(shape)
    if block is None:
        expected = stored.float() * scales.reshape(-1, 1)
    else:
        rows, columns = block
        expected = stored.float() * scales.repeat_interleave(rows, 0).repeat_interleave(columns, 1)[:OUT, :IN]
    holds(fp8_codes({"weight": stored, "weight_scale_inv": scales}, block), expected)


def test_scales_of_another_weight_are_refused() -> None:
    weight = torch.zeros(OUT, IN).to(torch.float8_e4m3fn)
    with pytest.raises(
        BrokenCheckpoint,
        match=r"scales of shape \[3, 2\] don't match an fp8 weight \[24, 256\] in blocks of \(32, 128\)",
    ):
        fp8_codes({"weight": weight, "weight_scale_inv": torch.rand(3, 2)}, (32, 128))


def test_groups_of_unequal_sizes_are_refused() -> None:
    parts = gptq_parts(weight_of(), 4, 64, torch.arange(IN) // 64, True, True)
    parts["g_idx"][0] = 3
    with pytest.raises(BrokenCheckpoint, match="groups that are not of 64 inputs"):
        gptq_codes(parts, has_low_zeros=True)
