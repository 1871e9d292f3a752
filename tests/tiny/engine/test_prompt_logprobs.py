"""Packed prompts are scored as each alone, and rows stay within their budget."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM

from qserve.engines.transformers.worker.attention import packed as attention
from qserve.engines.transformers.worker.batching import prompt_logprobs
from qserve.engines.transformers.worker.batching.prompt_logprobs import PromptToScore, pack, score_prompts
from qserve.engines.transformers.worker.sampling.params import SamplingParams
from qserve.engines.transformers.worker.sampling.sampler import SequenceSampler


@given(st.lists(st.integers(1, 900), max_size=40), st.integers(1, 1000))
def test_rows_hold_every_prompt_once_in_order_and_within_the_budget(lengths: list[int], budget: int) -> None:
    rows = list(pack(lengths, budget))
    assert [index for row in rows for index in row] == list(range(len(lengths)))
    for row in rows:
        assert len(row) == 1 or sum(lengths[index] for index in row) <= budget
    for row, following in itertools.pairwise(rows):
        assert sum(lengths[index] for index in row) + lengths[following[0]] > budget, "a row was ended too early"


@pytest.fixture(scope="module")
def packing_model(tiny: Any) -> Any:
    model = AutoModelForCausalLM.from_pretrained(tiny, dtype=torch.float32).eval()
    attention.use(model)
    return model


@pytest.mark.parametrize("chunk_rows", [1, 7, 10_000])
def test_packed_and_chunked_is_as_alone(
    model: Any, packing_model: Any, monkeypatch: pytest.MonkeyPatch, chunk_rows: int
) -> None:
    monkeypatch.setattr(prompt_logprobs, "_LOGITS_BYTES", chunk_rows * 4 * 1024)
    prompts = [list(range(5, 45)), [7], list(range(100, 300, 3)), [1, 1, 1]]
    greedy = [SequenceSampler(SamplingParams(temperature=0.0, num_logprobs=1), p) for p in prompts]
    scored = score_prompts(packing_model, [PromptToScore(p, 3, s) for p, s in zip(prompts, greedy, strict=True)])
    for prompt, result in zip(prompts, scored, strict=True):
        with torch.no_grad():
            rows = torch.log_softmax(model(torch.tensor([prompt])).logits[0], -1)
        assert len(result.logprobs) == len(result.top) == len(prompt)
        assert (result.logprobs[0], result.top[0]) == (None, ())
        meant = rows[:-1].gather(1, torch.tensor(prompt[1:])[:, None])[:, 0].tolist()
        assert result.logprobs[1:] == pytest.approx(meant, abs=1e-5)
        for row, top in zip(rows, result.top[1:], strict=False):
            assert [value for _, value in top] == pytest.approx(row.topk(3).values.tolist(), abs=1e-5)
        assert result.next_token is not None
        assert result.next_token.token_id == int(rows[-1].argmax())
        assert result.next_token.logprob == pytest.approx(float(rows[-1].max()), abs=1e-5)
