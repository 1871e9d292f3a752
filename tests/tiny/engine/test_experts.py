"""Experts by products of our own: what the library's modules say, of few tokens and of many."""

from __future__ import annotations

import pytest
import torch

from qserve.model import packed_linear
from qserve.model.cpu.build import why_none
from qserve.model.cpu.experts import CompiledExperts, compiled_experts_from
from qserve.model.cpu.linear import takes_bfloat16
from qserve.model.weights_held import weights_by_kind
from tests.tiny.engine.families import build

pytestmark = pytest.mark.skipif(why_none() is not None, reason=str(why_none()))


@pytest.fixture(autouse=True)
def products_of_our_own() -> None:
    if not takes_bfloat16():
        pytest.skip("this processor multiplies by oneDNN's products")


@pytest.mark.parametrize("family", ["qwen3-moe", "qwen3.5-moe", "qwen3-next"])
@pytest.mark.parametrize("num_tokens", [1, 9, 300])
def test_as_close_to_float32_as_the_library(family: str, num_tokens: int) -> None:
    library = build(family).model.layers[0].mlp.experts.bfloat16()
    ours = compiled_experts_from(library)
    assert ours is not None
    exact = build(family).model.layers[0].mlp.experts
    exact.load_state_dict({name: value.float() for name, value in library.state_dict().items()})
    states, shares = torch.randn(300, 64).bfloat16(), torch.rand(300, 2).bfloat16()
    chosen = torch.rand(300, 8).topk(2).indices
    pieces = list(zip(*(part.split(num_tokens) for part in (states, chosen, shares)), strict=True))
    with torch.no_grad():
        true = exact(states.float(), chosen, shares.float())
        theirs, got = (torch.cat([experts(*piece) for piece in pieces]) for experts in (library, ours))
    assert got.dtype == torch.bfloat16
    assert (got.float() - true).abs().mean() <= 1.05 * (theirs.float() - true).abs().mean()


def test_experts_that_nobody_has_add_nothing() -> None:
    """One behind the last is how the library says that another process has it."""
    ours = compiled_experts_from(build("qwen3-moe").model.layers[0].mlp.experts.bfloat16())
    states, shares = torch.randn(3, 64).bfloat16(), torch.rand(3, 2).bfloat16()
    nobody = torch.tensor([[8, 2], [8, 8], [5, 8]])
    got = ours(states, nobody, shares)
    alone = ours(states, torch.tensor([[2, 8], [8, 8], [8, 5]]), shares.flip(1))
    assert torch.equal(got, alone)
    assert (got[1] == 0).all()


def test_packed_experts_are_held_once_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed_linear, "_WORTH_PACKING_BYTES", 0)
    model = build("qwen3-moe").bfloat16()
    before = weights_by_kind(model)["experts"]
    packed_linear.pack_linears(model)
    assert sum(isinstance(module, CompiledExperts) for module in model.modules()) == 4
    assert not [name for name, _ in model.named_parameters() if ".experts." in name]
    assert weights_by_kind(model)["experts"] == before


def test_float32_and_other_modules_are_left_alone() -> None:
    assert compiled_experts_from(build("qwen3-moe").model.layers[0].mlp.experts) is None
    assert compiled_experts_from(torch.nn.Linear(64, 64)) is None
