"""int8, NF4 and FP4 made by the compiled library: bitsandbytes' numbers, bit by bit, by every build."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from bitsandbytes import functional as bitsandbytes
from torch import nn

from qserve.model.cpu import build
from qserve.model.cpu.matrix import codes_matrix, int8_matrix
from qserve.model.cpu.quantized import four_bit_weight, int8_weight
from tests.tiny.engine.compilers import COMPILERS, compiled_by

pytestmark = pytest.mark.skipif(build.why_none() is not None, reason=str(build.why_none()))


@pytest.fixture(scope="module", params=COMPILERS, autouse=True)
def compiler(request: pytest.FixtureRequest) -> Iterator[str]:
    """The library as this processor gets it, and as poorer ones do."""
    with compiled_by(request.param):
        yield request.param


def weights() -> dict[str, torch.Tensor]:
    """Usual ones; rows from nothing to what bf16 ends with; every number of bf16 up to 1e30."""
    torch.manual_seed(0)
    sizes = torch.tensor([0.0, 1e-40, 1e-30, 1e-7, 3e-5, 1.0, 1e4, 1e37])
    every = torch.arange(-(2**15), 2**15).to(torch.int16).view(torch.bfloat16)
    return {
        "usual": (torch.randn(96, 512) / 20).bfloat16(),
        "many blocks": (torch.randn(513, 2048) / 20).bfloat16(),
        "far apart": (torch.randn(64, 64) * sizes.repeat(8)[:, None]).bfloat16(),
        "every number": torch.where(every.abs() < 1e30, every, 0.0).view(128, 512),
    }


@pytest.mark.parametrize("kind", ["nf4", "fp4"])
@pytest.mark.parametrize("is_nested", [True, False])
def test_4_bit(kind: str, is_nested: bool) -> None:
    for name, weight in weights().items():
        stored, state = bitsandbytes.quantize_4bit(weight, blocksize=64, quant_type=kind, compress_statistics=is_nested)
        halves = stored.view(len(weight), -1)
        codes = torch.stack([halves >> 4, halves & 15], -1).flatten(1)
        scales = state.absmax
        if is_nested:
            scales = bitsandbytes.dequantize_blockwise(state.absmax, state.state2) + state.offset
        theirs = codes_matrix(kind, codes, state.code, scales.float().view(len(weight), -1))
        ours = four_bit_weight(weight, kind, is_nested=is_nested)
        assert ours is not None
        assert theirs is not None
        for part in ("codes", "scales", "values"):
            assert torch.equal(getattr(ours, part), getattr(theirs, part)), (name, part)


def test_int8() -> None:
    for name, weight in weights().items():
        rounded, largest, _ = bitsandbytes.int8_vectorwise_quant(weight.half())
        theirs = int8_matrix(rounded, largest / 127)
        ours = int8_weight(weight)
        assert ours is not None
        assert theirs is not None
        for part in ("codes", "scales"):
            assert torch.equal(getattr(ours, part), getattr(theirs, part)), (name, part)


def test_what_the_products_do_not_take() -> None:
    for weight in (torch.randn(64, 96).bfloat16(), torch.randn(64, 64)):
        assert four_bit_weight(weight, "nf4", is_nested=True) is None
        assert int8_weight(weight) is None


def test_a_part_of_a_larger_weight() -> None:
    """As experts lie in the library's parameter."""
    whole = nn.Parameter((torch.randn(128, 256) / 20).bfloat16(), requires_grad=False).data
    for part in (whole[32:96], whole[:, 64:128]):
        copied = four_bit_weight(part.clone(), "nf4", is_nested=True)
        found = four_bit_weight(part, "nf4", is_nested=True)
        assert found is not None
        assert copied is not None
        assert torch.equal(found.codes, copied.codes)
