"""Panels out of numbers as files store them, by every build: byte by byte those that torch's operations make."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from qserve.model.cpu import build
from qserve.model.cpu.packing import PANEL, Form, Numbers, packed
from tests.tiny.engine.compilers import COMPILERS, compiled_by

pytestmark = pytest.mark.skipif(build.why_none() is not None, reason=str(build.why_none()))

SHAPES = [(32, 64), (24, 256), (40, 96), (136, 8), (200, 152), (288, 512)]


@pytest.fixture(scope="module", params=COMPILERS, autouse=True)
def compiler(request: pytest.FixtureRequest) -> Iterator[str]:
    """The library as this processor gets it, and as poorer ones do."""
    with compiled_by(request.param):
        yield request.param


def words_of(*shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randint(-(2**31), 2**31 - 1, shape, dtype=torch.int32, generator=generator)


def padded(rows: torch.Tensor) -> torch.Tensor:
    missing = -len(rows) % PANEL
    return torch.cat([rows, rows.new_zeros(missing, *rows.shape[1:])])


def panels_of_codes(codes: torch.Tensor, bits: int) -> torch.Tensor:
    """matrix.h: inputs by runs of a word, of which those at even places come first."""
    runs = padded(codes).view(-1, PANEL, codes.shape[1] * bits // 32, 32 // bits)
    if bits == 8:
        return runs[..., [0, 2, 1, 3]].transpose(1, 2).contiguous().flatten()
    low, high = runs[..., [0, 4, 1, 5]], runs[..., [2, 6, 3, 7]]
    return (low | high << 4).transpose(1, 2).contiguous().flatten()


def order_of(width: int) -> torch.Tensor:
    return torch.randperm(width, generator=torch.Generator().manual_seed(width)).int()


def stored(shape: tuple[int, int], bits: int) -> dict[str, Numbers]:
    """Random numbers as each kind of file has them, of which some have more than `shape`."""
    (out, width), form = shape, Form.CODES if bits == 4 else Form.BYTES
    runs = width * bits // 32
    found = {
        "GPTQ": Numbers(words_of(runs, out).mT, form, shape),
        "GPTQ, act order": Numbers(words_of(runs, out).mT, form, shape, order_of(width)),
        "compressed-tensors": Numbers(words_of(out, runs + 1), form, shape),
        "compressed-tensors, act order": Numbers(words_of(out, runs), form, shape, order_of(width)),
        "a part of a file": Numbers(words_of(out + 3, runs + 5)[2:-1, 3:-2], form, shape),
    }
    if bits == 4:
        half_bytes = words_of(out * width // 8 + 1).view(torch.uint8)
        found["AWQ"] = Numbers(words_of(width, out // 8), Form.OUTPUTS, shape)
        found["bitsandbytes"] = Numbers(half_bytes[1 : 1 + out * width // 2].view(out, -1), Form.PAIRS, shape)
    return found


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("bits", [4, 8])
def test_panels_of_codes(shape: tuple[int, int], bits: int) -> None:
    for name, numbers in stored(shape, bits).items():
        codes = numbers.unpacked()
        assert codes.shape == shape
        assert torch.equal(packed(numbers), panels_of_codes(codes, bits)), name
        plain = codes if numbers.order is None else codes[:, numbers.order.argsort()]
        bare = Numbers(numbers.words, numbers.form, shape)
        assert torch.equal(plain, bare.unpacked()), name


@pytest.mark.parametrize("shape", SHAPES)
def test_panels_of_codes_in_a_byte_each(shape: tuple[int, int]) -> None:
    codes = words_of(shape[0], shape[1] // 4).view(torch.uint8)
    assert torch.equal(packed(Numbers.of_bytes(codes)), panels_of_codes(codes, 8))
    assert torch.equal(packed(Numbers.of_nibbles(codes & 15)), panels_of_codes(codes & 15, 4))


@pytest.mark.parametrize("shape", SHAPES)
def test_panels_of_numbers_with_a_sign(shape: tuple[int, int]) -> None:
    """Two's complement + 128, also of the outputs that are filled up."""
    weight = words_of(shape[0], shape[1] // 4).view(torch.int8)
    fours = padded(weight).view(-1, PANEL, shape[1] // 4, 4).transpose(1, 2).contiguous()
    assert torch.equal(packed(Numbers(weight, Form.SIGNED, shape)), fours.view(torch.uint8).flatten() ^ 128)


@pytest.mark.parametrize("shape", SHAPES)
def test_panels_of_bf16(shape: tuple[int, int]) -> None:
    weight = words_of(shape[0], shape[1] // 2).view(torch.bfloat16)
    pairs = padded(weight.view(torch.int16)).view(-1, PANEL, shape[1] // 2, 2).transpose(1, 2).contiguous()
    for held in (weight, weight.mT.contiguous().mT):
        found = packed(Numbers(held, Form.BFLOAT16, shape))
        assert torch.equal(found.view(torch.int16), pairs.flatten())


@pytest.mark.parametrize("form", [Form.CODES, Form.OUTPUTS, Form.BYTES])
def test_too_few_words_are_refused(form: Form) -> None:
    for words in (words_of(8, 64), words_of(64, 2)):
        with pytest.raises(ValueError, match="words of"):
            Numbers(words, form, (64, 64))
