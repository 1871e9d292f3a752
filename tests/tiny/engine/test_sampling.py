"""The sampler by itself: what it draws, what truncation leaves, what penalties do; each against a plain reference."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import pytest
import torch
from transformers import RepetitionPenaltyLogitsProcessor

from qserve.engine.transformers.sampling.sampler import SamplingParams, SequenceSampler, top_logprobs

CPU = torch.device("cpu")
EOS = 3


def sampler(prompt: list[int] | None = None, drawn: list[int] | None = None, **params: Any) -> SequenceSampler:
    one = SequenceSampler(SamplingParams(**{"seed": 0, **params}), prompt or [], CPU)
    for token in drawn or []:
        one.record(token)
    return one


def row(vocab: int, seed: int = 0, scale: float = 3.0) -> torch.Tensor:
    return torch.randn(vocab, generator=torch.Generator().manual_seed(seed)) * scale


def survivors(logits: torch.Tensor, **params: Any) -> set[int]:
    """Tokens that truncation leaves, by the plainest reading of what vLLM does: min-p, then top-k, then top-p."""
    scaled = logits.double() / params.get("temperature", 1.0)
    probabilities = torch.softmax(scaled, -1)
    kept = probabilities.argsort(descending=True).tolist()
    kept = [i for i in kept if probabilities[i] >= params.get("min_p", 0.0) * probabilities.max()]
    if params.get("top_k"):
        kept = kept[: params["top_k"]]
    total, mass, nucleus = float(probabilities[kept].sum()), 0.0, []
    for i in kept:
        nucleus.append(i)
        mass += float(probabilities[i]) / total
        if mass >= params.get("top_p", 1.0):
            break
    return set(nucleus)


def left_by_sampler(logits: torch.Tensor, **params: Any) -> set[int]:
    one = sampler(**params)
    ids, scores = one._truncate(logits / one.params.temperature)
    assert ids is None or len(ids) == len(scores)
    return set(range(len(logits))) if ids is None else set(ids.tolist())


@pytest.mark.parametrize("vocab", [50, 1024, 1500, 5000])
@pytest.mark.parametrize(
    "params",
    [
        {"top_k": 1}, {"top_k": 7}, {"top_k": 1200}, {"top_p": 0.1}, {"top_p": 0.9}, {"top_p": 0.9999}, {"min_p": 0.05},
        {"min_p": 1e-7}, {"top_k": 20, "top_p": 0.8}, {"top_k": 1200, "top_p": 0.999}, {"min_p": 0.02, "top_p": 0.7},
        {"min_p": 0.01, "top_k": 5, "top_p": 0.9, "temperature": 0.6}, {"top_p": 0.95, "temperature": 2.0},
    ],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("scale", [0.05, 3.0], ids=["flat", "peaked"])
def test_truncation_is_exact(vocab: int, params: dict[str, Any], scale: float) -> None:
    """A flat row of 5000 needs more candidates than the 1024 that are looked at first."""
    logits = row(vocab, scale=scale)
    left, meant = left_by_sampler(logits, **params), survivors(logits, **params)
    # Where shares are as small as float32's last bits, the border may fall a few tokens aside.
    assert len(left ^ meant) <= (4 if len(meant) > 500 else 0)


def test_nothing_is_truncated_unless_asked() -> None:
    assert left_by_sampler(row(2000), top_p=1.0, top_k=0, min_p=0.0) == set(range(2000))
    assert left_by_sampler(row(30), top_k=30) == set(range(30))
    assert left_by_sampler(row(30), top_k=10**12) == set(range(30))


@pytest.mark.parametrize(
    "params",
    [{}, {"temperature": 0.5}, {"temperature": 2.0}, {"top_k": 4}, {"top_p": 0.7}, {"min_p": 0.1}],
    ids=str,
)
def test_draws_follow_the_distribution(params: dict[str, Any]) -> None:
    """Chi-square at a fixed seed; the bound is the 99.9th percentile."""
    logits, num = row(12, scale=1.0), 6000
    kept = sorted(survivors(logits, **params))
    expected = torch.softmax(logits[kept].double() / params.get("temperature", 1.0), -1) * num
    one = sampler(seed=42, **params)
    counts = Counter(one._draw(logits) for _ in range(num))
    assert set(counts) <= set(kept)
    chi2 = sum((counts[token] - e) ** 2 / e for token, e in zip(kept, expected.tolist(), strict=True))
    degrees = max(1, len(kept) - 1)
    bound = degrees * (1 - 2 / (9 * degrees) + 3.09 * math.sqrt(2 / (9 * degrees))) ** 3  # Wilson–Hilferty
    assert chi2 < bound


def test_the_seed_decides() -> None:
    logits = row(200, scale=1.0)

    def draws(seed: int | None) -> list[int]:
        one = sampler(seed=seed)
        return [one.choose(logits).token_id for _ in range(20)]

    assert draws(5) == draws(5)
    assert draws(5) != draws(6)
    assert draws(None) != draws(None)
    assert draws(-1) == draws(-1)


def test_zero_temperature_is_greedy() -> None:
    logits = row(100)
    assert [sampler(temperature=0.0).choose(logits).token_id for _ in range(3)] == [int(logits.argmax())] * 3


def test_the_event_loop_brings_nothing_to_a_card() -> None:
    """A sampler is made there, and whatever is brought to a card waits for the step that runs on it."""
    asked = SamplingParams(logit_bias={7: 1.0}, repetition_penalty=1.1, seed=3)
    SequenceSampler(asked, [1, 2], torch.device("cuda", 0))  # this machine has none
    greedy = SequenceSampler(SamplingParams(temperature=0.0), [1, 2], torch.device("cuda", 0))
    assert greedy.choose(row(50)).token_id == int(row(50).argmax())


def test_the_row_is_not_changed() -> None:
    logits = row(100)
    before = logits.clone()
    one = sampler([1, 2], [4, 4], repetition_penalty=1.5, frequency_penalty=1.0, logit_bias={7: 3.0}, num_logprobs=2)
    one.choose(logits)
    assert torch.equal(logits, before)


def test_openais_penalties() -> None:
    """mu[j] − c[j]·alpha_frequency − (c[j] > 0)·alpha_presence, over what was generated, not over the prompt."""
    logits = row(10)
    penalised = sampler([8, 9], [1, 1, 1, 2], frequency_penalty=0.5, presence_penalty=0.25)._penalise(logits)
    counts = torch.tensor([0.0, 3, 1, 0, 0, 0, 0, 0, 0, 0])
    torch.testing.assert_close(penalised, logits - 0.5 * counts - 0.25 * (counts > 0))


@pytest.mark.parametrize("penalty", [0.5, 1.3, 10.0])
def test_repetition_penalty_is_transformers_own(penalty: float) -> None:
    logits, prompt, drawn = row(50), [3, 4, 4, 5], [5, 9, 9]
    theirs = RepetitionPenaltyLogitsProcessor(penalty)(torch.tensor([prompt + drawn]), logits[None].clone())[0]
    torch.testing.assert_close(sampler(prompt, drawn, repetition_penalty=penalty)._penalise(logits), theirs)


def test_logit_bias_is_added_before_penalties() -> None:
    logits = row(10)
    biased = sampler(logit_bias={2: 5.0, 7: -100.0})._penalise(logits)
    meant = logits.clone()
    meant[2] += 5
    meant[7] -= 100
    torch.testing.assert_close(biased, meant)
    again = sampler([], [2], logit_bias={2: 50.0}, repetition_penalty=10.0)._penalise(logits)
    torch.testing.assert_close(again[2], (logits[2] + 50) / 10)


def test_min_tokens_keeps_the_ends_away() -> None:
    logits = row(10)
    logits[EOS] = 50.0
    one = sampler(temperature=0.0, min_tokens=3, stop_token_ids=frozenset({EOS}), logit_bias={EOS: 100.0})
    drawn = [one.choose(logits).token_id for _ in range(4)]
    assert EOS not in drawn[:3]
    assert drawn[3] == EOS
    assert (
        sampler(temperature=0.0, min_tokens=2).choose(logits).token_id == EOS
    )  # nothing ends it, nothing to keep away


@pytest.mark.parametrize(
    ("params", "plain"),
    [
        ({}, True), ({"num_logprobs": 0}, False), ({"presence_penalty": 0.1}, False), ({"logit_bias": {1: 1.0}}, False),
        ({"repetition_penalty": 1.1}, False), ({"min_tokens": 1}, False), ({"temperature": 1.0}, False),
        ({"top_k": 3, "top_p": 0.5}, True),
    ],
    ids=str,
)  # fmt: skip
def test_what_may_share_an_argmax(params: dict[str, Any], plain: bool) -> None:
    assert sampler(**{"temperature": 0.0, **params}).is_plain_greedy is plain


def test_logprobs_are_the_models_own() -> None:
    """Before temperature, bias and penalties, as vLLM's default has it."""
    logits = row(40)
    meant = torch.log_softmax(logits, -1)
    one = sampler(temperature=0.7, seed=1, num_logprobs=4, logit_bias={11: 80.0})
    choice = one.choose(logits)
    assert choice.token_id == 11
    assert choice.logprob == pytest.approx(float(meant[11]), abs=1e-6)
    assert [token for token, _ in choice.top] == meant.topk(4).indices.tolist()
    assert [value for _, value in choice.top] == pytest.approx(meant.topk(4).values.tolist(), abs=1e-6)


def test_minus_infinity_reads_minus_9999() -> None:
    logits = torch.tensor([0.0, float("-inf"), 1.0])
    assert top_logprobs(torch.log_softmax(logits, -1)[None], 3)[0][-1] == (1, -9999.0)
    forced = sampler(temperature=0.0, num_logprobs=0, logit_bias={}).choose(logits)
    assert forced.logprob is not None
    assert forced.logprob > -1
