"""Texts of a row that share nothing are one call of attention on a card: the same numbers, and how many launches."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from torch.nn.attention import varlen

from bench.row_counts import layer_launches
from qserve.engines.transformers.kernels.refusals import TEXT_ATTENTION
from qserve.engines.transformers.worker.attention import texts
from qserve.engines.transformers.worker.attention.kernels import Heads
from qserve.engines.transformers.worker.attention.texts import attend_texts, refused_texts, text_trials, try_texts
from qserve.model.sdpa import causal_prompt
from qserve.model.trials.verdicts import TrialRefused, Verdict
from qserve.reward import load
from qserve.reward.scoring.attention import RowLayout, Segment, segment_sdpa
from tests.tiny.engine.fake_card import FakeCard, fake_card
from tests.tiny.engine.families import build

CARD = torch.device("cuda", 0)
HEADS = Heads(4, 2, 16, torch.bfloat16)
CALLS: list[int] = []


def by_the_book(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    cu_seq_q: torch.Tensor,
    cu_seq_k: torch.Tensor,
    max_q: int,
    max_k: int,
    *,
    scale: float | None = None,
    window_size: tuple[int, int] = (-1, -1),
    enable_gqa: bool = False,
) -> torch.Tensor:
    """What torch's kernel says of itself; a CPU has none."""
    assert cu_seq_q is cu_seq_k and window_size == (-1, 0) and enable_gqa
    lengths = cu_seq_q.diff().tolist()
    assert max_q == max_k == max(lengths) and cu_seq_q.dtype == torch.int32 and cu_seq_q[-1] == len(query)
    CALLS.append(len(lengths))
    parts = zip(*(one.transpose(0, 1)[None].split(lengths, dim=2) for one in (query, key, value)), strict=True)
    return torch.cat([causal_prompt(q, k, v, scale)[0].transpose(0, 1) for q, k, v in parts])


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    CALLS.clear()
    monkeypatch.setattr(varlen, "varlen_attn", by_the_book)


def some_row(seed: int) -> tuple[Segment, ...]:
    """Texts of all lengths, some of which share a beginning."""
    of = random.Random(seed)
    segments: list[Segment] = []
    end = 0
    for _ in range(of.randint(1, 6)):
        shared = of.choice([0, 0, of.randint(1, 9)])
        begin = end
        if shared:
            segments.append(Segment(begin, begin + shared))
            end += shared
        for _ in range(of.randint(1, 3) if shared else 1):
            start, end = end, end + of.randint(1, 12)
            segments.append(Segment(start, end, begin, begin + shared))
    return tuple(segments)


@pytest.mark.parametrize("seed", range(30))
def test_a_row_says_the_same_by_one_call(kernel: None, seed: int) -> None:
    segments = some_row(seed)
    generator = torch.Generator().manual_seed(seed)
    query, key, value = (torch.randn(1, heads, segments[-1].stop, 8, generator=generator) for heads in (6, 2, 2))
    said, meant = (
        segment_sdpa(torch.nn.Identity(), query, key, value, None, 0.3, layout=RowLayout(segments, by_one_call=one))[0]
        for one in (True, False)
    )
    assert said.is_contiguous() and said.shape == meant.shape
    assert torch.allclose(said, meant, atol=1e-5)
    alone = sum(one.shared_start == one.shared_stop for one in segments)
    assert ([len(segments)] if alone > 1 else []) == CALLS


def test_launches_of_a_layer() -> None:
    """docs/results/gpu.md; of 36 layers that is 4,608 and 36 launches of attention."""
    beside = layer_launches(1, by_one_call=False) - 2  # a call of attention, and a copy of what it says
    assert layer_launches(64, by_one_call=False) - beside == 2 * 64
    assert layer_launches(64, by_one_call=True) - beside == 1
    with_beginning = [layer_launches(64, by_one_call=one, shared=9) for one in (False, True)]
    assert with_beginning[0] == with_beginning[1]


def test_the_trial_finds_out_a_kernel_that_is_wrong(kernel: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def late(*args: Any, enable_gqa: bool = False, **kwargs: Any) -> torch.Tensor:
        return by_the_book(*args, enable_gqa=enable_gqa, **kwargs).roll(1, 0)

    try_texts("cpu", name=TEXT_ATTENTION, **HEADS.to_json())
    monkeypatch.setattr(varlen, "varlen_attn", late)
    with pytest.raises(TrialRefused, match="wrong"):
        try_texts("cpu", name=TEXT_ATTENTION, **HEADS.to_json())


def test_which_cards_it_is_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 6))
    assert len(text_trials(CARD, HEADS)) == 1
    assert text_trials(torch.device("cpu"), HEADS) == []
    assert text_trials(CARD, Heads(4, 2, 16, torch.float32)) == []
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    assert text_trials(CARD, HEADS) == []


def test_a_refusal_is_said_and_the_loop_stays(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 6))
    monkeypatch.setattr(texts, "tried", lambda device, groups, afresh: {groups[0][0]: Verdict("its trial hung")})
    found = refused_texts(CARD, HEADS)
    assert found is not None and caplog.messages == [str(found)]
    assert str(found).startswith("attention over texts is refused on this card (its trial hung)")
    body = build("qwen3").model.bfloat16()
    assert load._one_call(body) == (False, ())  # a CPU
    monkeypatch.setattr(load, "text_trials", lambda device, heads: [object()])
    monkeypatch.setattr(load, "refused_texts", lambda device, heads: found)
    assert load._one_call(body) == (False, (found,))
    monkeypatch.setattr(load, "refused_texts", lambda device, heads: None)
    assert load._one_call(body) == (True, ())


def test_the_installed_torch_takes_the_call() -> None:
    """Its own word on shapes, on a card that is not there; nothing is waited for."""
    with fake_card() as card, CARD:
        assert isinstance(card, FakeCard)
        query, key, value = (torch.empty(1, heads, 12, 16, dtype=torch.bfloat16) for heads in (4, 2, 2))
        bounds = torch.zeros(4, dtype=torch.int32)
        card.waits.clear()
        said: Any = attend_texts(query, key, value, bounds, 6, None)
        assert said.shape == (1, 12, 4, 16) and said.dtype == torch.bfloat16 and card.waits == []
