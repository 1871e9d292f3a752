"""Experts by products of our own: what the library's modules say, of few tokens and of many."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from qserve.model import packed_linear
from qserve.model.cpu.activations import exact_activations, round_activations
from qserve.model.cpu.build import why_none
from qserve.model.cpu.experts import CompiledExperts, compiled_experts_from, quantized_experts_from
from qserve.model.cpu.linear import takes_bfloat16
from qserve.model.cpu.matrix import codes_matrix, has_int8_activations, int8_matrix, joined
from qserve.model.measured_weights import weights_by_kind
from qserve.model.quantize import quantizer
from qserve.planner.plan import QuantChoice
from tests.tiny.engine.compilers import HAS_VNNI
from tests.tiny.engine.families import build
from tests.tiny.engine.loading import plan_of

pytestmark = pytest.mark.skipif(why_none() is not None, reason=str(why_none()))


@pytest.fixture
def products_of_our_own() -> None:
    """In bf16 they are ours on some processors alone."""
    if not takes_bfloat16():
        pytest.skip("this processor multiplies by oneDNN's products")


@pytest.mark.parametrize("family", ["qwen3-moe", "qwen3.5-moe", "qwen3-next"])
@pytest.mark.parametrize("num_tokens", [1, 9, 300])
@pytest.mark.usefixtures("products_of_our_own")
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


@pytest.mark.usefixtures("products_of_our_own")
def test_experts_that_nobody_has_add_nothing() -> None:
    """One behind the last is how the library says that another process has it."""
    ours = compiled_experts_from(build("qwen3-moe").model.layers[0].mlp.experts.bfloat16())
    states, shares = torch.randn(3, 64).bfloat16(), torch.rand(3, 2).bfloat16()
    nobody = torch.tensor([[8, 2], [8, 8], [5, 8]])
    got = ours(states, nobody, shares)
    alone = ours(states, torch.tensor([[2, 8], [8, 8], [8, 5]]), shares.flip(1))
    assert torch.equal(got, alone)
    assert (got[1] == 0).all()


@pytest.mark.usefixtures("products_of_our_own")
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


SCHEMES = ("bnb-int8", "bnb-nf4", "bnb-nf4-single", "bnb-fp4")


def quantized(scheme: str) -> CompiledExperts:
    made = quantizer(replace(plan_of("demo", "bnb-nf4"), quant=QuantChoice(scheme, "demo", in_flight=True)))
    assert made is not None
    experts = quantized_experts_from(build("qwen3-moe", expert_width=64).model.layers[0].mlp.experts.bfloat16(), made)
    assert experts is not None
    return experts


def dequantized(ours: CompiledExperts) -> Any:
    """The library's module in float32, of the same weights."""
    library = build("qwen3-moe", expert_width=64).model.layers[0].mlp.experts
    gate, up, down = (matrix.dense().view(8, -1, matrix.in_features) for matrix in ours.matrices)
    library.load_state_dict({"gate_up_proj": torch.cat([gate, up], dim=1), "down_proj": down})
    return library


def asked(num_tokens: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """States, of which each token's experts and their shares."""
    torch.manual_seed(num_tokens)
    return torch.randn(num_tokens, 64).bfloat16(), torch.rand(num_tokens, 8).topk(2).indices, torch.rand(num_tokens, 2)


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("num_tokens", [1, 9, 70, 300])
def test_in_int8_and_4_bit_they_are_the_weights_that_their_format_says(scheme: str, num_tokens: int) -> None:
    """As close to float32 as the library's module is in bf16."""
    ours, states, chosen, shares = quantized(scheme), *asked(num_tokens)
    library = dequantized(ours)
    with torch.no_grad():
        true = library(states.float(), chosen, shares)
        theirs = library.bfloat16()(states, chosen, shares.bfloat16())
        got = ours(states, chosen, shares)
    assert (got.float() - true).abs().mean() <= 1.05 * (theirs.float() - true).abs().mean()


@pytest.mark.parametrize("scheme", SCHEMES)
def test_weights_are_near_those_that_were_quantized(scheme: str) -> None:
    """Each expert in its place: another's would be off by more than the whole weight."""
    plain = build("qwen3-moe", expert_width=64).model.layers[0].mlp.experts
    with torch.no_grad():
        for name, weight in dequantized(quantized(scheme)).named_parameters():
            off = (weight - getattr(plain, name)).flatten(1).norm(dim=1) / getattr(plain, name).flatten(1).norm(dim=1)
            assert off.max() < (0.02 if scheme == "bnb-int8" else 0.2)


@pytest.mark.parametrize("scheme", ["bnb-int8", "bnb-nf4"])
def test_rounded_activations_are_off_by_a_per_cent(scheme: str) -> None:
    """However many tokens an expert has."""
    ours = quantized(scheme)
    model = torch.nn.ModuleList([ours])
    if not has_int8_activations():
        assert round_activations(model) == 0
        return
    exact = {num: ours(*asked(num)) for num in (4, 300)}
    assert round_activations(model) == 1
    with exact_activations(model):
        assert torch.equal(ours(*asked(300)), exact[300])
    for num, before in exact.items():
        off = (ours(*asked(num)).float() - before.float()).norm() / before.float().norm()
        assert (1e-3 if HAS_VNNI else -1) < off < 2e-2


def test_experts_with_zero_points_in_groups() -> None:
    """As GPTQ and AWQ store them: groups of 32, of several experts in one weight."""
    parts = []
    for seed in range(3):
        some = torch.Generator().manual_seed(seed)
        codes = torch.randint(0, 16, (64, 64), dtype=torch.uint8, generator=some)
        scales, offsets = torch.rand(64, 2, generator=some), torch.randn(64, 2, generator=some)
        parts.append(codes_matrix("int4", codes, torch.arange(16) - 8.0, scales, offsets))
    whole = joined([one for one in parts if one is not None])
    assert whole is not None
    assert torch.equal(whole.dense(), torch.cat([one.dense() for one in parts if one is not None]))
    experts = CompiledExperts(3, whole, whole, whole)
    states, chosen = torch.randn(40, 64).bfloat16(), torch.rand(40, 3).topk(1).indices
    got = experts(states, chosen, torch.ones(40, 1)).float()
    weight = whole.dense().view(3, 64, 64)[chosen[:, 0]]
    gate = torch.einsum("toi,ti->to", weight, states.float())
    true = torch.einsum("toi,ti->to", weight, torch.nn.functional.silu(gate) * gate)
    assert ((got - true).norm() / true.norm()) < 1e-2


def test_experts_that_do_not_go_together_are_not_joined() -> None:
    first = int8_matrix(torch.ones(32, 64, dtype=torch.int8), torch.rand(32))
    other = int8_matrix(torch.ones(32, 128, dtype=torch.int8), torch.rand(32))
    partial = int8_matrix(torch.ones(33, 64, dtype=torch.int8), torch.rand(33))
    assert first is not None and other is not None and partial is not None
    assert joined([first, first]) is not None
    assert joined([first, other]) is None
    assert joined([first, partial]) is None
