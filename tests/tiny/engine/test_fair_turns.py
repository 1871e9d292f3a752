"""Sequences of several clients share a batch: who comes late does not wait, and everybody says what it says alone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
from transformers import AutoModelForCausalLM

from qserve.engines.transformers.worker.batching.batcher import Sequence
from qserve.engines.transformers.worker.batching.paged import PagedBatcher
from qserve.engines.transformers.worker.batching.rows.batcher import RowBatcher
from qserve.engines.transformers.worker.batching.turns import Turn
from tests.tiny.engine.running import generated, idle, prompts, running, sequence, tokens_of

BATCHERS = pytest.mark.parametrize("kind", [PagedBatcher, RowBatcher])
POOLS = pytest.mark.parametrize("kv_cache_tokens", [4096, 512], ids=["roomy", "tight"])
Copy = Callable[[], Any]
Meant = Callable[[list[int], int], list[int]]
_LONG = 60


def _of(turn: Turn, name: str, prompt: list[int], max_tokens: int, **params: Any) -> Sequence:
    one = sequence(name, prompt, max_tokens, **params)
    one.turn = turn
    return one


@pytest.fixture
def copy(tiny: Any) -> Copy:
    """A model of its own for each batcher."""
    return lambda: AutoModelForCausalLM.from_pretrained(tiny).eval()


@pytest.fixture(scope="module")
def meant(model: Any) -> Meant:
    """What `generate` says after a prompt, asked once."""

    @cache
    def said(prompt: tuple[int, ...], max_tokens: int) -> list[int]:
        return generated(model, list(prompt), max_tokens)

    return lambda prompt, max_tokens: said(tuple(prompt), max_tokens)


@BATCHERS
@POOLS
@pytest.mark.parametrize("is_background", [False, True])
async def test_a_chat_ends_before_any_of_the_many_answers_that_came_first(
    kind: type[Any], kv_cache_tokens: int, is_background: bool, meant: Meant, copy: Copy
) -> None:
    wide = Turn("a", "wide", is_background)
    asked = prompts(8, 40)
    chats = prompts(3, 60)
    async with running(kind, copy(), kv_cache_tokens=kv_cache_tokens, max_num_seqs=4) as batcher:
        many = [_of(wide, f"a{number}", prompt, _LONG) for number, prompt in enumerate(asked)]
        tasks = [asyncio.create_task(tokens_of(batcher, one)) for one in many]
        async with asyncio.timeout(60):
            while sum(bool(one.sampled_ids) for one in many) < 3:
                await asyncio.sleep(0.001)
        for number, prompt in enumerate(chats):
            chat = _of(Turn("b", f"chat{number}"), f"b{number}", prompt, 4)
            assert await tokens_of(batcher, chat) == meant(prompt, 4)
            assert not any(task.done() for task in tasks), "it waited for the end of another client's answer"
        answers = await asyncio.gather(*tasks)
        await idle(batcher)
    for prompt, tokens in zip(asked, answers, strict=True):
        assert tokens == meant(prompt, _LONG)


@BATCHERS
@POOLS
async def test_answers_with_seeds_are_the_same_in_portions(kind: type[Any], kv_cache_tokens: int, copy: Copy) -> None:
    prompt = prompts(1, 30)[0]

    def answers() -> list[Sequence]:
        turn = Turn("a", "wide")
        return [_of(turn, f"n{index}", prompt, 40, temperature=1.0, seed=5 + index) for index in range(10)]

    async with running(kind, copy(), max_num_seqs=16) as batcher:
        at_once = await asyncio.gather(*(tokens_of(batcher, one) for one in answers()))
    async with running(kind, copy(), max_num_seqs=3, kv_cache_tokens=kv_cache_tokens) as batcher:
        line = [_of(Turn("b", "line", True), f"line{index}", prompt, 40) for index in range(6)]
        beside = asyncio.gather(*(tokens_of(batcher, one) for one in line))
        in_portions = await asyncio.gather(*(tokens_of(batcher, one) for one in answers()))
        await beside
    assert in_portions == at_once


@BATCHERS
async def test_who_leaves_gives_all_that_waits_of_it_back(kind: type[Any], copy: Copy) -> None:
    async with running(kind, copy(), max_num_seqs=2) as batcher:
        many = [_of(Turn("a", "wide"), f"a{number}", prompt, 400) for number, prompt in enumerate(prompts(20, 20))]
        for one in many:
            batcher.submit(one)
        async with asyncio.timeout(60):
            while not any(one.sampled_ids for one in many):
                await asyncio.sleep(0.001)
        for one in many:
            batcher.cancel(one)
        await idle(batcher)
        chat = _of(Turn("b", "chat"), "b", prompts(1, 10)[0], 3)
        assert len(await tokens_of(batcher, chat)) == 3


async def test_a_prompt_does_not_wait_until_all_of_another_client_are_read(copy: Copy) -> None:
    async with running(PagedBatcher, copy(), max_num_seqs=16, max_num_batched_tokens=32) as batcher:
        long = [_of(Turn("a", "wide"), f"a{number}", prompt, 50) for number, prompt in enumerate(prompts(12, 180, 0))]
        for one in long:
            batcher.submit(one)
        async with asyncio.timeout(60):
            while not any(one.sampled_ids for one in long):
                await asyncio.sleep(0.001)
        await tokens_of(batcher, _of(Turn("b", "chat"), "b", prompts(1, 20)[0], 1))
        assert sum(bool(one.sampled_ids) for one in long) < 6
        for one in long:
            batcher.cancel(one)
        await idle(batcher)


@pytest.mark.parametrize(("own", "other"), [("", "b"), ("a", ""), ("a", "b")])
async def test_a_cached_prompt_is_found_with_the_same_salt_alone(
    own: str, other: str, meant: Meant, copy: Copy
) -> None:
    prompt = prompts(1, 100)[0]
    found = []
    async with running(PagedBatcher, copy()) as batcher:
        for number, salt in enumerate((own, other, own, other)):
            one = sequence(f"s{number}", prompt, 20)
            one.cache_salt = salt
            assert await tokens_of(batcher, one) == meant(prompt, 20)
            found.append(one.num_cached_tokens)
    assert found[:2] == [0, 0]
    assert found[2] == found[3] >= 64
