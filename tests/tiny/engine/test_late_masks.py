"""A mask that is late holds up its own answer alone, at any stage of it and on every path; and no token is another."""

from __future__ import annotations

import asyncio
import copy
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import pytest

from qserve.engines.transformers.worker.batching import paged
from qserve.engines.transformers.worker.batching.batcher import Sequence
from qserve.engines.transformers.worker.batching.paged import PagedBatcher
from qserve.engines.transformers.worker.batching.prompt_logprobs import PromptToScore
from qserve.engines.transformers.worker.batching.scoring import PromptScorer
from qserve.engines.transformers.worker.sampling.late import late_rows
from qserve.engines.transformers.worker.sampling.mask_threads import CHEAP_S, MaskQueue, MaskThreads
from qserve.engines.transformers.worker.sampling.sampler import SequenceSampler
from tests.tiny.engine.families import build
from tests.tiny.engine.late_masks import Gate, gated
from tests.tiny.engine.paths import PATHS, runs_of_a_card
from tests.tiny.engine.running import choices_of, idle, prompts, running, sequence, tokens_of

NUM_TOKENS = 40
LATE: dict[str, Any] = {"temperature": 1.0, "seed": 3, "num_logprobs": 2, "repetition_penalty": 1.1}


@pytest.fixture(params=PATHS)
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Any]:
    """A batcher's class and a model for it."""
    make: Callable[[pytest.MonkeyPatch], tuple[Any, Any]] = PATHS[request.param]
    return make(monkeypatch)


def late(num_before: int, *, is_open: bool = False, **params: Any) -> tuple[Sequence, Any]:
    """Its masks are held up after so many tokens."""
    guide, gate = gated(num_before, is_open=is_open)
    return sequence("late", prompts(1, 33)[0], 12, grammar=guide, **{**LATE, **params}), gate


def others() -> list[Sequence]:
    return [
        sequence("greedy", prompts(2, 20)[1], NUM_TOKENS),
        sequence("drawn", prompts(3, 20)[2], NUM_TOKENS, temperature=1.0, seed=5),
    ]


async def reached(gate: Any) -> None:
    async with asyncio.timeout(60):
        while not gate.reached.is_set():
            await asyncio.sleep(0.001)


@pytest.mark.parametrize("num_before", [0, 4])
async def test_others_take_all_their_steps_while_a_mask_is_late(path: tuple[Any, Any], num_before: int) -> None:
    """From its first token on, or in the middle; it goes on with the very tokens that it would have had."""
    kind, model = path
    async with running(kind, model) as batcher:
        alone = [await choices_of(batcher, one) for one in others()]
        meant = await choices_of(batcher, late(0, is_open=True)[0])
        held, gate = late(num_before)
        waiting = asyncio.create_task(choices_of(batcher, held))
        await reached(gate)
        beside = await asyncio.gather(*(choices_of(batcher, one) for one in others()))
        assert len(held.sampled_ids) == num_before and not waiting.done()
        gate.open.set()
        said = await waiting
    assert [[one.token_id for one in answer] for answer in beside] == [[c.token_id for c in one] for one in alone]
    assert [one.token_id for one in said] == [one.token_id for one in meant]
    assert [one.logprob for one in said] == pytest.approx([one.logprob for one in meant], abs=0.02)


async def test_others_join_and_end_beside_it_and_it_ends_in_their_company(path: tuple[Any, Any]) -> None:
    """Batches change while it sits out, and again when it is back."""
    kind, model = path
    async with running(kind, model) as batcher:
        meant = await tokens_of(batcher, late(0, is_open=True)[0])
        first = asyncio.create_task(tokens_of(batcher, others()[0]))
        held, gate = late(4)
        waiting = asyncio.create_task(tokens_of(batcher, held))
        await reached(gate)
        await tokens_of(batcher, sequence("short", prompts(4, 20)[3], 3))
        second = asyncio.create_task(tokens_of(batcher, others()[1]))
        await first
        gate.open.set()
        assert await waiting == meant
        await second


async def test_it_can_be_cancelled_while_it_sits_out(path: tuple[Any, Any]) -> None:
    kind, model = path
    async with running(kind, model) as batcher:
        held, gate = late(2)
        batcher.submit(held)
        await reached(gate)
        batcher.cancel(held)
        await tokens_of(batcher, others()[0])
        await idle(batcher)
        gate.open.set()
        assert len(held.sampled_ids) == 2 and batcher.load().kv_cache_usage < 0.5


async def test_it_may_lose_its_pages_while_it_sits_out(path: tuple[Any, Any]) -> None:
    """A pool that does not hold all of them: who is preempted is read again, with what it has drawn."""
    kind, model = path
    async with running(kind, copy.deepcopy(model)) as batcher:
        meant = await tokens_of(batcher, late(0, is_open=True)[0])
        alone = [await tokens_of(batcher, one) for one in crowd()]
    async with running(kind, model, kv_cache_tokens=256) as batcher:
        beside = [asyncio.create_task(tokens_of(batcher, one)) for one in crowd()]
        held, gate = late(4)
        waiting = asyncio.create_task(tokens_of(batcher, held))
        await reached(gate)
        said = await asyncio.gather(*beside)
        gate.open.set()
        after = await waiting
    if model.dtype.itemsize == 4:  # in bf16 what is read again rounds otherwise
        assert said == alone and after == meant
    assert len(after) == len(meant)


def crowd() -> list[Sequence]:
    return [sequence(f"r{i}", prompt, 60) for i, prompt in enumerate(prompts(3, 20))]


async def test_several_answers_of_one_request_and_of_others_sit_out_alike(path: tuple[Any, Any]) -> None:
    kind, model = path
    guide, gate = gated(3)
    asked = [sequence(f"n{i}", prompts(1, 33)[0], 10, grammar=guide, temperature=1.0, seed=i) for i in range(4)]
    async with running(kind, model) as batcher:
        open_guide, _ = gated(0, is_open=True)
        meant = [
            await tokens_of(batcher, sequence("x", prompts(1, 33)[0], 10, grammar=open_guide, temperature=1.0, seed=i))
            for i in range(4)
        ]
        waiting = [asyncio.create_task(tokens_of(batcher, one)) for one in asked]
        await reached(gate)
        await tokens_of(batcher, others()[0])
        gate.open.set()
        assert await asyncio.gather(*waiting) == meant


async def test_no_forward_is_launched_for_late_ones_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would take the cores from what it waits for."""
    kind, model = runs_of_a_card(monkeypatch)
    steps: list[int] = []
    forward = paged.DecodingStages.step
    monkeypatch.setattr(paged.DecodingStages, "step", lambda *of: (steps.append(1), forward(*of))[1])
    forwards: list[int] = []
    model.register_forward_pre_hook(lambda *_: forwards.append(1))
    async with running(kind, model) as batcher:
        held, gate = late(4)
        waiting = asyncio.create_task(tokens_of(batcher, held))
        await reached(gate)
        before = len(steps)
        await asyncio.sleep(0.3)
        assert len(steps) - before < 60, "it waits between two looks"
        gate.open.set()
        await waiting


async def test_a_scored_prompt_s_late_mask_holds_nobody() -> None:
    """The token after a prompt, which is drawn while generation is held."""
    model = build("qwen3")
    async with running(PagedBatcher, model) as batcher:
        scorer = PromptScorer(model, batcher, asyncio.get_running_loop(), 256)
        scorer.start()
        try:
            held, gate = late(0)
            scored = asyncio.create_task(scorer.score([PromptToScore(held.prompt_ids, 0, held.sampler)]))
            await reached(gate)
            await tokens_of(batcher, others()[0])
            assert not scored.done()
            gate.open.set()
            (one,) = await scored
            assert one.next_token is not None and one.next_token.token_id % 2 == 0
        finally:
            scorer.stop()


def waited_for(gate: Gate) -> bool:
    gate.reached.set()
    return gate.open.wait(60)


def test_cheap_masks_pass_expensive_ones_and_requests_take_turns() -> None:
    threads, gates = MaskThreads(num_quick=1, num_slow=1), [gated(0)[1] for _ in range(2)]
    slow = [threads.submit(MaskQueue(), lambda gate=gate: (waited_for(gate), 0.0)) for gate in gates]
    for gate in gates:  # each is on the one quick thread in turn, and is preempted
        assert gate.reached.wait(60)
        time.sleep(2 * CHEAP_S)
        threads.preempt()
    assert threads.submit(MaskQueue(), lambda: ("cheap", 0.0)).result(10) == "cheap"
    assert not any(one.done() for one in slow)
    for gate in gates:
        gate.open.set()
    assert [one.result(10) for one in slow] == [True, True]
    order: list[str] = []
    blocked, first, second = gated(0)[1], MaskQueue(), MaskQueue()
    waits = threads.submit(MaskQueue(), lambda: (blocked.open.wait(60), 0.0))
    asked = [
        threads.submit(queue, lambda name=name: (order.append(name), 0.0))
        for queue, name in [(first, "a"), (first, "b"), (first, "c"), (second, "d")]
    ]
    blocked.open.set()
    for one in (waits, *asked):
        one.result(10)
    assert order.index("d") <= 1


def test_nothing_is_computed_for_who_is_gone_and_slow_requests_go_behind() -> None:
    threads, blocked, computed = MaskThreads(num_quick=1, num_slow=1), gated(0)[1], []
    waits = threads.submit(MaskQueue(), lambda: (blocked.open.wait(60), 0.0))
    queue = MaskQueue()
    threads.submit(queue, lambda: (computed.append("gone"), 0.0))
    kept: Future[Any] = threads.submit(queue, lambda: (computed.append("kept"), 1.0))
    blocked.open.set()
    kept.result(10), waits.result(10)
    assert computed == ["kept"]
    assert queue.is_slow
    threads.submit(queue, lambda: (None, 0.0)).result(10)
    assert {is_slow: len(found) for is_slow, found in threads._threads.items()} == {False: 1, True: 1}


def test_a_late_row_is_not_waited_for_twice() -> None:
    """A step waits for a mask once, and shortly; then its request's patience is what is left."""
    guide, gate = gated(0)
    params = sequence("x", [1], 1, grammar=guide).sampler.params
    samplers = [SequenceSampler(params, [1]), SequenceSampler(replace(params, grammar=None), [1])]
    before = guide.queue.patience_s
    assert list(late_rows(samplers)) == [0] and before - guide.queue.patience_s > 0
    left = guide.queue.patience_s
    assert list(late_rows(samplers)) == [0] and guide.queue.patience_s == left
    gate.open.set()
    samplers[0].wait()
    assert not late_rows(samplers)
