"""Draws by top-p and min-p without a sort, in Triton's interpreter: token for token what a sort of whole rows draws."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

from qserve.engines.transformers.kernels.refusals import TOP_P_DRAW
from qserve.engines.transformers.worker.sampling import draw, nucleus
from qserve.engines.transformers.worker.sampling.batch import BatchSampler
from qserve.engines.transformers.worker.sampling.params import SamplingParams
from qserve.engines.transformers.worker.sampling.sampler import SequenceSampler
from tests.tiny.engine.fake_card import FakeCard

CUDA = torch.device("cuda", 0)
_CASES = """
import torch
from qserve.engines.transformers.worker.sampling import nucleus, triton_nucleus
from qserve.engines.transformers.worker.sampling.draw import Truncation, drawn_by_sort
from qserve.engines.transformers.worker.sampling.params import SamplingParams
from qserve.engines.transformers.worker.sampling.sampler import _BELOW_ONE

torch.manual_seed(0)
CUTS = ((0.01, 0.0), (0.5, 0.0), (0.9, 0.2), (0.999, 0.0), (1.0, 0.01), (1.0, 1.0))


def both(scores, cuts, uniforms):
    asked = [SamplingParams(temperature=1.0, top_p=top_p, min_p=min_p) for top_p, min_p in cuts]
    truncation = Truncation.of(asked, scores.shape[1], scores.device)
    said = triton_nucleus.draw_by_mass(scores, truncation.log_min_p, truncation.top_p, uniforms)
    return said.tolist(), drawn_by_sort(scores, truncation, uniforms).tolist()


def same(name, scores, cuts=CUTS, uniforms=None):
    uniforms = torch.rand(len(scores), dtype=torch.float64) if uniforms is None else uniforms
    said, meant = both(scores, cuts, uniforms)
    assert said == meant, (name, said, meant)


same("one token", torch.randn(2, 1), CUTS[2:4])
same("smooth", 3 * torch.randn(6, 4096))
same("many equal", (3 * torch.randn(6, 5003)).bfloat16().float())
same("all equal", torch.zeros(6, 2503))
same("more than are gathered", 0.3 * torch.randn(6, 4003))
zeros = torch.zeros(6, 41)  # no share of them is a border of CUTS
zeros[:, ::3] = -0.0  # equal to the others
same("both zeros", zeros)
masked = torch.full((6, 5003), float("-inf"))
masked[:, 77], masked[:, 4000:4003] = -80.0, -80.5
same("nearly all forbidden", masked)
steep = torch.linspace(0, -300, 3000).repeat(6, 1)
same("most shares are nothing", steep[:, torch.randperm(3000)])
ends = torch.tensor([0.0, _BELOW_ONE] * 3, dtype=torch.float64)
same("from the first to the last, of rows that lie apart", torch.randn(6, 601)[:, :300], uniforms=ends)
# Of equal scores, as many of the first ones as the nucleus needs, and each as often.
equal = torch.tensor([[1.0] + [0.0] * 9] * 8)
said, meant = both(equal, [(0.6, 0.0)] * 8, torch.arange(8).double() / 8)
assert said == meant and set(said) == {0, 1, 2, 3, 4, 5}, said
# A row of no numbers fails its own sequence later; the others are drawn, and nothing is written elsewhere.
broken = torch.randn(4, 5003)
whole = both(broken, CUTS[:4], torch.full((4,), 0.4).double())[0]
broken[1], broken[2, 7] = float("nan"), float("inf")
said = both(broken, CUTS[:4], torch.full((4,), 0.4).double())[0]
assert [said[row] for row in (0, 3)] == [whole[row] for row in (0, 3)]
assert all(0 <= token < 5003 for token in said), said
# What a card is tried with at start.
nucleus.try_draw("cpu", name="top-p draw", vocab_size=4003)
triton_nucleus.draw_by_mass = lambda scores, floor, top_p, uniforms: scores.argmax(-1)
try:
    nucleus.try_draw("cpu", name="top-p draw", vocab_size=4003)
except nucleus.TrialRefused:
    raise SystemExit(0)
raise AssertionError("another draw is seen")
"""


def test_it_draws_what_a_sort_draws() -> None:
    pytest.importorskip("triton")
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, "-W", "ignore", "-c", _CASES], env=environment, check=True, timeout=400)


def test_a_card_draws_by_it_once_it_is_found_right(card: FakeCard, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows without top-k alone, and without a wait; the trial's values, that this card has not, are not looked at."""
    pytest.importorskip("triton")
    monkeypatch.setattr(draw, "ON_CARDS", {})
    monkeypatch.setattr(nucleus, "ON_CARDS", draw.ON_CARDS)
    monkeypatch.setattr(nucleus.torch, "equal", lambda *_: True)
    assert nucleus.choose_draw(CUDA, 5000) == () and set(draw.ON_CARDS) == {TOP_P_DRAW}
    kernels = ["_count_scores", "_gather_likeliest", "_draw_by_mass"]
    for asked, launched in (({"top_p": 0.9}, kernels), ({"min_p": 0.1}, kernels), ({"top_p": 0.9, "top_k": 2000}, [])):
        card.launched.clear(), card.waits.clear()
        sampler = SequenceSampler(SamplingParams(temperature=1.0, seed=1, **asked), [1])
        tokens = BatchSampler().draw([sampler], torch.empty(1, 5000, device=CUDA)).tokens
        assert (tokens.shape, tokens.device.type, list(card.launched)) == ((1,), "cuda", launched)
        assert card.waits == []


def test_a_card_that_refuses_it_sorts(card: FakeCard, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draw, "ON_CARDS", {TOP_P_DRAW: lambda *_: 1 / 0})
    monkeypatch.setattr(nucleus, "ON_CARDS", draw.ON_CARDS)
    monkeypatch.setattr(nucleus.torch, "equal", lambda *_: False)
    (refused,) = nucleus.choose_draw(CUDA, 5000)
    assert "top-p draw refused" in refused.warning and "sorts the whole vocabulary" in refused.warning
    assert draw.ON_CARDS == {} and nucleus.choose_draw(torch.device("cpu"), 5000) == ()
