"""The sampler by itself: what it draws, what truncation leaves, what penalties do; each against a plain reference."""

from __future__ import annotations

import math
import random
import tracemalloc
from collections import Counter
from typing import Any

import pytest
import torch
from transformers import RepetitionPenaltyLogitsProcessor

from qserve.engines.transformers.worker.sampling.adjust import Adjustment
from qserve.engines.transformers.worker.sampling.batch import BatchSampler, _kind_of, choose_one, top_logprobs
from qserve.engines.transformers.worker.sampling.draw import Truncation, largest, left
from qserve.engines.transformers.worker.sampling.draw import drawn as draw
from qserve.engines.transformers.worker.sampling.params import SamplingParams
from qserve.engines.transformers.worker.sampling.penalties import SeenTokens
from qserve.engines.transformers.worker.sampling.sampler import SequenceSampler, Uniforms
from qserve.model.failures import SequenceFailed

CPU = torch.device("cpu")
EOS = 3


def sampler(prompt: list[int] | None = None, drawn: list[int] | None = None, **params: Any) -> SequenceSampler:
    one = SequenceSampler(SamplingParams(**{"seed": 0, **params}), prompt or [])
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
    asked = SamplingParams(**params)
    is_cut, _, number = _kind_of(asked, len(logits))
    if not is_cut:
        return set(range(len(logits)))
    ids, shares = left((logits / asked.temperature)[None], number, Truncation.of([asked], len(logits), CPU))
    return set(ids[shares > 0].tolist())


def adjusted(logits: torch.Tensor, one: SequenceSampler) -> torch.Tensor:
    """The row as it is drawn from."""
    return Adjustment([one], len(logits), CPU)(logits[None], [one], SeenTokens(), {})[0]


@pytest.mark.parametrize("vocab", [50, 1024, 1500, 5000])
@pytest.mark.parametrize(
    "params",
    [
        {"top_k": 1},
        {"top_k": 7},
        {"top_k": 1200},
        {"top_p": 0.1},
        {"top_p": 0.9},
        {"top_p": 0.9999},
        {"min_p": 0.05},
        {"min_p": 1e-7},
        {"top_k": 20, "top_p": 0.8},
        {"top_k": 1200, "top_p": 0.999},
        {"min_p": 0.02, "top_p": 0.7},
        {"min_p": 0.01, "top_k": 5, "top_p": 0.9, "temperature": 0.6},
        {"top_p": 0.95, "temperature": 2.0},
    ],
    ids=str,
)
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
    "params", [{}, {"temperature": 0.5}, {"temperature": 2.0}, {"top_k": 4}, {"top_p": 0.7}, {"min_p": 0.1}], ids=str
)
def test_draws_follow_the_distribution(params: dict[str, Any]) -> None:
    """Chi-square at a fixed seed; the bound is the 99.9th percentile."""
    logits, num = row(12, scale=1.0), 6000
    kept = sorted(survivors(logits, **params))
    expected = torch.softmax(logits[kept].double() / params.get("temperature", 1.0), -1) * num
    uniforms = Uniforms(42)
    asked = SamplingParams(**params)
    is_cut, _, number = _kind_of(asked, len(logits))
    truncation = Truncation.of([asked] * num, len(logits), CPU) if is_cut else None
    numbers = torch.tensor([uniforms.at(position) for position in range(num)], dtype=torch.float64)
    counts = Counter(draw((logits / asked.temperature).expand(num, -1), number, truncation, numbers).tolist())
    assert set(counts) <= set(kept)
    chi2 = sum((counts[token] - e) ** 2 / e for token, e in zip(kept, expected.tolist(), strict=True))
    degrees = max(1, len(kept) - 1)
    bound = degrees * (1 - 2 / (9 * degrees) + 3.09 * math.sqrt(2 / (9 * degrees))) ** 3  # Wilson–Hilferty
    assert chi2 < bound


def test_the_seed_decides() -> None:
    logits = row(200, scale=1.0)

    def draws(seed: int | None) -> list[int]:
        one = sampler(seed=seed)
        return [choose_one(one, logits).token_id for _ in range(20)]

    assert draws(5) == draws(5)
    assert draws(5) != draws(6)
    assert draws(None) != draws(None)
    assert draws(-1) == draws(-1)


def test_the_largest_is_the_first_of_equal_ones_or_no_number() -> None:
    scores = torch.stack([row(3000).bfloat16().float() for _ in range(3)])
    scores[1, [70, 2000]], scores[2, [40, 50]] = 99.0, float("nan")
    values, ids = largest(scores)
    assert ids.tolist() == [int(scores[0].argmax()), 70, 40]
    assert values[:2].tolist() == [float(scores[0].max()), 99.0] and values[2].isnan()


def test_zero_temperature_is_greedy() -> None:
    logits = row(100)
    assert [choose_one(sampler(temperature=0.0), logits).token_id for _ in range(3)] == [int(logits.argmax())] * 3


def test_numbers_are_of_the_seed_and_the_position() -> None:
    one = Uniforms(7)
    ahead = [one.at(position) for position in range(200)]
    assert [Uniforms(7).at(position) for position in (150, 3, 64)] == [ahead[150], ahead[3], ahead[64]]
    assert len(set(ahead)) == 200
    assert all(0.0 <= number < 1.0 for number in ahead)
    assert Uniforms(8).at(0) != ahead[0] != Uniforms(-7).at(0)


MIXED: list[dict[str, Any]] = [
    {},
    {"temperature": 0.0},
    {"top_k": 20, "top_p": 0.95, "temperature": 0.6},
    {"top_k": 300},
    {"top_p": 0.9},
    {"min_p": 0.05},
    {"temperature": 0.0, "repetition_penalty": 1.3},
    {"presence_penalty": 1.0, "top_k": 5},
    {"frequency_penalty": 0.7, "logit_bias": {3: 4.0}},
    {"num_logprobs": 3},
    {"min_tokens": 4, "top_k": 2000},
    {"temperature": 0.0, "num_logprobs": 0, "logit_bias": {9: 2.5}},
]


@pytest.mark.parametrize("seed", [0, 1])
def test_draws_are_the_same_alone_and_in_company_in_every_order(seed: int) -> None:
    """64 sequences that ask for all kinds of things, of rows in which many scores are equal; some come late."""
    number, steps, vocab = 64, 12, 1500
    rng = random.Random(seed)
    ends = frozenset({EOS})
    asked = [{**MIXED[i % len(MIXED)], "seed": i, "stop_token_ids": ends} for i in range(number)]
    rows = (torch.randn(steps, number, vocab, generator=torch.Generator().manual_seed(seed)) * 3).bfloat16().float()
    alone = [sampler([i, i + 1], **params) for i, params in enumerate(asked)]
    meant = [[choose_one(one, rows[step, i]) for step in range(steps)] for i, one in enumerate(alone)]
    together, batch, told = [sampler([i, i + 1], **params) for i, params in enumerate(asked)], BatchSampler(), []
    told = [[] for _ in asked]
    while waiting := [i for i in range(number) if len(told[i]) < steps]:
        order = rng.sample(waiting, rng.randint(1, len(waiting)))
        scores = torch.stack([rows[len(told[i]), i] for i in order])
        for i, choice in zip(order, batch.draw([together[i] for i in order], scores).choices(), strict=True):
            told[i].append(choice)
    assert told == meant


def test_what_is_left_of_a_row_does_not_depend_on_the_others() -> None:
    """To the last bit, beside a row so flat that all of its tokens have to be sorted."""
    vocab = 5000
    for seed in range(8):
        asked = [SamplingParams(top_p=0.9), SamplingParams(top_p=0.999)]
        rows = torch.stack([row(vocab, seed), row(vocab, seed, scale=0.01)])
        ids, shares = left(rows, None, Truncation.of(asked, vocab, CPU))
        alone_ids, alone_shares = left(rows[:1], None, Truncation.of(asked[:1], vocab, CPU))
        assert alone_shares.shape[1] < vocab == shares.shape[1], "else this shows nothing"
        kept = alone_shares[0] > 0
        assert torch.equal(ids[0, : len(kept)][kept], alone_ids[0][kept])
        assert torch.equal(shares[0, : len(kept)], alone_shares[0]) and not shares[0, len(kept) :].any()


@pytest.mark.parametrize("vocab", [40, 61, 1024])
def test_masks_leave_what_they_allow(vocab: int) -> None:
    """A bit a token, lowest first; rows without a mask stay as they are, and tokens beyond a mask are left out."""
    logits, rng = torch.stack([row(vocab, seed) for seed in range(3)]), random.Random(vocab)
    masks = {0: rng.randbytes(vocab), 2: rng.randbytes(vocab // 8 - 2)}
    samplers = [sampler() for _ in range(3)]
    adjustment, on_a_card = Adjustment(samplers, vocab, CPU), logits.clone()
    told = adjustment(logits, samplers, SeenTokens(), masks)
    adjustment._bind(on_a_card, logits, masks)
    assert torch.equal(told, on_a_card)
    for index in range(3):
        mask = masks.get(index, b"\xff" * vocab).ljust(vocab, b"\0")
        allowed = torch.tensor([bool(mask[token // 8] >> token % 8 & 1) for token in range(vocab)])
        assert torch.equal(told[index], logits[index].masked_fill(~allowed, float("-inf")))


def test_masks_of_a_large_vocabulary_take_no_memory_of_their_own() -> None:
    """Fresh pages are what they would cost on a CPU; as Python's objects their bytes take more than a megabyte."""
    vocab = 151_936
    logits, samplers = torch.zeros(8, vocab), [sampler() for _ in range(8)]
    adjustment, masks = Adjustment(samplers, vocab, CPU), {index: bytes(vocab // 8) for index in range(8)}
    kept = adjustment(logits, samplers, SeenTokens(), masks).data_ptr()
    tracemalloc.start()
    try:
        assert adjustment(logits, samplers, SeenTokens(), masks).data_ptr() == kept
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 3 * 8 * vocab // 8


def test_a_row_that_is_no_number_fails_alone() -> None:
    samplers = [sampler(temperature=0.0, num_logprobs=0) for _ in range(2)]
    logits = torch.stack([row(50), row(50)])
    logits[0, 7] = float("nan")
    broken, whole = BatchSampler().draw(samplers, logits).choices()
    assert isinstance(broken, SequenceFailed) and whole == choose_one(samplers[1].fresh(), logits[1])


def test_the_row_is_not_changed() -> None:
    logits = row(100)
    before = logits.clone()
    one = sampler([1, 2], [4, 4], repetition_penalty=1.5, frequency_penalty=1.0, logit_bias={7: 3.0}, num_logprobs=2)
    choose_one(one, logits)
    assert torch.equal(logits, before)


def test_openais_penalties() -> None:
    """mu[j] − c[j]·alpha_frequency − (c[j] > 0)·alpha_presence, over what was generated, not over the prompt."""
    logits = row(10)
    penalised = adjusted(logits, sampler([8, 9], [1, 1, 1, 2], frequency_penalty=0.5, presence_penalty=0.25))
    counts = torch.tensor([0.0, 3, 1, 0, 0, 0, 0, 0, 0, 0])
    torch.testing.assert_close(penalised, logits - 0.5 * counts - 0.25 * (counts > 0))


@pytest.mark.parametrize("penalty", [0.5, 1.3, 10.0])
def test_repetition_penalty_is_transformers_own(penalty: float) -> None:
    logits, prompt, drawn = row(50), [3, 4, 4, 5], [5, 9, 9]
    theirs = RepetitionPenaltyLogitsProcessor(penalty)(torch.tensor([prompt + drawn]), logits[None].clone())[0]
    torch.testing.assert_close(adjusted(logits, sampler(prompt, drawn, repetition_penalty=penalty)), theirs)


def test_logit_bias_is_added_before_penalties() -> None:
    logits = row(10)
    biased = adjusted(logits, sampler(logit_bias={2: 5.0, 7: -100.0}))
    meant = logits.clone()
    meant[2] += 5
    meant[7] -= 100
    torch.testing.assert_close(biased, meant)
    again = adjusted(logits, sampler([], [2], logit_bias={2: 50.0}, repetition_penalty=10.0))
    torch.testing.assert_close(again[2], (logits[2] + 50) / 10)


def test_min_tokens_keeps_the_ends_away() -> None:
    logits = row(10)
    logits[EOS] = 50.0
    one = sampler(temperature=0.0, min_tokens=3, stop_token_ids=frozenset({EOS}), logit_bias={EOS: 100.0})
    drawn = [choose_one(one, logits).token_id for _ in range(4)]
    assert EOS not in drawn[:3]
    assert drawn[3] == EOS
    assert (
        choose_one(sampler(temperature=0.0, min_tokens=2), logits).token_id == EOS
    )  # nothing ends it, nothing to keep away


@pytest.mark.parametrize(
    ("params", "plain"),
    [
        ({}, True),
        ({"num_logprobs": 0}, False),
        ({"presence_penalty": 0.1}, False),
        ({"logit_bias": {1: 1.0}}, False),
        ({"repetition_penalty": 1.1}, False),
        ({"min_tokens": 1}, False),
        ({"temperature": 1.0}, False),
        ({"top_k": 3, "top_p": 0.5}, True),
    ],
    ids=str,
)
def test_what_may_share_an_argmax(params: dict[str, Any], plain: bool) -> None:
    assert sampler(**{"temperature": 0.0, **params}).is_plain_greedy is plain


def test_logprobs_are_the_models_own() -> None:
    """Before temperature, bias and penalties, as vLLM's default has it."""
    logits = row(40)
    meant = torch.log_softmax(logits, -1)
    one = sampler(temperature=0.7, seed=1, num_logprobs=4, logit_bias={11: 80.0})
    choice = choose_one(one, logits)
    assert choice.token_id == 11
    assert choice.logprob == pytest.approx(float(meant[11]), abs=1e-6)
    assert [token for token, _ in choice.top] == meant.topk(4).indices.tolist()
    assert [value for _, value in choice.top] == pytest.approx(meant.topk(4).values.tolist(), abs=1e-6)


def test_minus_infinity_reads_minus_9999() -> None:
    logits = torch.tensor([0.0, float("-inf"), 1.0])
    assert top_logprobs(torch.log_softmax(logits, -1)[None], 3)[0][-1] == (1, -9999.0)
    forced = choose_one(sampler(temperature=0.0, num_logprobs=0, logit_bias={}), logits)
    assert forced.logprob is not None
    assert forced.logprob > -1
