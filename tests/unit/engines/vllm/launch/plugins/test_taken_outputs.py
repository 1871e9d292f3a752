"""Outputs of a token each, put together as another server took them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from qserve.engines.vllm.launch.plugins.taken_outputs import OtherTokens, Portion, TakenAgain, tokens_by_choice


@dataclass
class Completion:
    """As vLLM's `CompletionOutput`."""

    index: int
    token_ids: list[int]


@dataclass
class Output:
    """As vLLM's `RequestOutput`."""

    outputs: list[Completion]
    num_cached_tokens: int | None = 7
    parts: list[Output] = field(default_factory=list)

    def add(self, other: Output, aggregate: bool) -> None:
        assert aggregate
        for completion in other.outputs:
            own = [one for one in self.outputs if one.index == completion.index]
            if own:
                own[0].token_ids += completion.token_ids
            else:
                self.outputs.append(completion)


def drawn(*tokens: tuple[int, int]) -> list[Output]:
    return [Output([Completion(index, [token])]) for index, token in tokens]


def taken(portions: Sequence[Portion], outputs: Sequence[Output]) -> list[tuple[Portion, bool]]:
    async def engine() -> AsyncGenerator[Any]:
        for output in outputs:
            yield output

    async def all_of() -> list[tuple[Portion, bool]]:
        return [(Portion.of(output), is_new) async for output, is_new in TakenAgain(portions).of(engine())]

    return asyncio.run(all_of())


FIRST, BOTH, LAST = Portion(3, [(0, [10])]), Portion(3, [(1, [20, 21]), (0, [11])]), Portion(3, [(0, [12, 13])])


def test_without_a_journal_they_pass_as_they_come() -> None:
    outputs = drawn((0, 1), (1, 2))
    assert taken([], outputs) == [(Portion(7, [(0, [1])]), True), (Portion(7, [(1, [2])]), True)]


def test_they_come_in_the_same_portions_and_then_as_they_are() -> None:
    outputs = drawn((0, 10), (0, 11), (1, 20), (0, 12), (1, 21), (1, 22), (0, 13), (0, 14))
    again = taken([FIRST, BOTH, LAST], outputs)
    assert again[:3] == [(FIRST, False), (BOTH, False), (LAST, False)]
    assert again[3:] == [(Portion(3, [(1, [22])]), True), (Portion(3, [(0, [14])]), True)]


@pytest.mark.parametrize(
    "outputs", [drawn((0, 10), (1, 20), (1, 21), (0, 99)), drawn((0, 10), (0, 11), (1, 20), (1, 9))]
)
def test_another_token_is_an_error(outputs: list[Output]) -> None:
    with pytest.raises(OtherTokens, match="are known"):
        taken([FIRST, BOTH], outputs)


def test_an_earlier_end_is_an_error() -> None:
    with pytest.raises(OtherTokens, match="2 outputs before"):
        taken([FIRST, BOTH, LAST], drawn((0, 10), (0, 11), (1, 20)))


def test_what_each_choice_is_bound_to() -> None:
    assert tokens_by_choice([FIRST, BOTH, LAST], 3) == [[10, 11, 12, 13], [20, 21], []]
