"""A thought is ended at its budget, and not before; one that ended by itself, or never began, is left alone."""

from __future__ import annotations

import pytest
import torch

from qserve.engines.transformers.worker.sampling.batch import choose_one
from qserve.engines.transformers.worker.sampling.params import SamplingParams
from qserve.engines.transformers.worker.sampling.sampler import SequenceSampler
from qserve.engines.transformers.worker.sampling.thought_budget import Thought, ThoughtBudget

OPEN, CLOSE, WORD = 90, 91, 5


def drawn(budget: ThoughtBudget, prompt: list[int], wants: list[int], **params: float) -> list[int]:
    """What comes of a model that is sure of `wants`, token after token."""
    sampler = SequenceSampler(SamplingParams(temperature=0.0, thought_budget=budget, **params), prompt)
    told = []
    for token in wants:
        if sampler.is_plain_greedy:
            sampler.record(token)
            told.append(token)
        else:
            told.append(choose_one(sampler, torch.nn.functional.one_hot(torch.tensor(token), 100).float()).token_id)
    return told


@pytest.mark.parametrize("num", [0, 1, 3])
@pytest.mark.parametrize("in_prompt", [False, True])
def test_at_the_budget_the_thought_is_closed_and_the_answer_follows(num: int, in_prompt: bool) -> None:
    budget, words = ThoughtBudget(num, (OPEN,), (CLOSE,)), [WORD] * 8
    prompt, wants = ([1, OPEN], words) if in_prompt else ([1, 2], [OPEN, *words])
    assert drawn(budget, prompt, wants) == [*wants[: len(wants) - 8 + num], CLOSE, *words[num + 1 :]]


def test_tokens_of_the_prompt_s_thought_count() -> None:
    assert drawn(ThoughtBudget(3, (OPEN,), (CLOSE,)), [OPEN, WORD, WORD], [WORD] * 4) == [WORD, CLOSE, WORD, WORD]


def test_a_thought_that_ends_by_itself_and_an_answer_without_one_are_left_alone() -> None:
    budget = ThoughtBudget(3, (OPEN,), (CLOSE,))
    for prompt, wants in (([1], [OPEN, WORD, CLOSE, *[WORD] * 6]), ([1], [WORD] * 9), ([OPEN, CLOSE], [WORD] * 9)):
        assert drawn(budget, prompt, wants) == wants
        assert drawn(budget, prompt, wants, num_logprobs=0) == wants


def test_tags_of_several_tokens() -> None:
    thought = Thought(ThoughtBudget(2, (7, 8), (7, 9, 10)), [7, 8, WORD])
    assert thought.forced is None
    thought.see(WORD)
    forced = []
    while (token := thought.forced) is not None:
        forced.append(token)
        thought.see(token)
    assert forced == [7, 9, 10]
