"""Whatever fails at any stage of a row of rewards, exactly the text whose it is fails; the others score the same."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from qserve.detect import detect
from qserve.model.failures import SequenceFailed
from qserve.planner import PlanRequest
from qserve.reward.head import ScoreHead
from qserve.reward.items import Score, ScoreItem
from qserve.reward.open import open_scorer
from qserve.reward.scoring import compute, forward, row_queue
from qserve.reward.scoring.scorer import RewardScorer
from qserve.reward.settings import RewardSettings
from tests.tiny.reward.test_formats import texts

POISON = 777
LENGTH = 24


class Fault(Exception):
    """Injected."""


def of_texts(some: Iterable[Any]) -> bool:
    """Whether the faulty one is among texts, or tokens of texts."""
    return any(POISON in getattr(one, "token_ids", one) for one in some)


def of_row(_: Any, row: Any, all_texts: Any) -> bool:
    return of_texts(all_texts[member] for group in row for member in group.members)


STAGES: dict[str, tuple[Any, str, Callable[..., bool]]] = {
    "packing": (row_queue, "grouped", of_texts),
    "rows": (row_queue.RowQueue, "_next_row", lambda _, some: of_texts(some)),
    "packed batch": (compute, "forward_packed", of_row),
    "body": (torch.nn.Embedding, "forward", lambda _, ids: bool((ids == POISON).any())),
    "padding": (forward, "row_padding", lambda *_: False),
    "pooling": (forward, "_read", lambda _, __, wanted, some: of_texts(some[member] for member in wanted)),
    "a number": (compute, "_finite", lambda output: False),
    "counting": (compute.RowComputer, "count_item", lambda _, num_tokens, __: num_tokens == LENGTH + 1),
    "telling": (RewardScorer, "_score_of", lambda _, item, *__: of_texts([item])),
}
CASES = [name for name in STAGES if name not in ("padding", "a number")]


@pytest.fixture
def scorer(made: Callable[[str], Path]) -> RewardScorer:
    """One of its own, small rows: its parts are tampered with."""
    request = PlanRequest(dtype="float32", max_num_batched_tokens=256)
    return open_scorer(str(made("sequence-classification")), RewardSettings(), detect(), request)


@asynccontextmanager
async def running(one: RewardScorer) -> AsyncIterator[RewardScorer]:
    one.start()
    try:
        yield one
    finally:
        one.stop()


def items(num: int) -> list[ScoreItem]:
    """Some with a common beginning, some long."""
    lengths = [LENGTH * (4 if index % 7 == 6 else 1) for index in range(num)]
    found = [[token % POISON for token in ids] for ids in texts(5, lengths)]
    return [ScoreItem([*found[0][:10], *ids] if index % 3 == 0 else ids) for index, ids in enumerate(found)]


def faulty() -> ScoreItem:
    return ScoreItem([*(token % POISON for token in texts(9, [LENGTH])[0]), POISON])


def inject(patched: pytest.MonkeyPatch, stage: str) -> list[int]:
    owner, name, is_due = STAGES[stage]
    original, hits = getattr(owner, name), []

    def call(*args: Any, **kwargs: Any) -> Any:
        if is_due(*args, **kwargs):
            hits.append(1)
            raise Fault("injected")
        return original(*args, **kwargs)

    patched.setattr(owner, name, call)
    return hits


@pytest.mark.parametrize("num", [1, 24])
@pytest.mark.parametrize("stage", CASES)
async def test_exactly_the_text_at_fault_fails(
    scorer: RewardScorer, stage: str, num: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = items(num)
    meant = scorer.score_now(asked)
    hits = inject(monkeypatch, stage)
    async with running(scorer):
        for _ in range(2):
            found = await asyncio.gather(*(scorer.score_each([one]) for one in [*asked, faulty(), faulty()]))
            *ours, first, second = [one for (one,) in found]
            assert hits
            if stage not in ("packing", "rows"):  # alone it needs no company, and gets its score
                assert isinstance(first, SequenceFailed) and isinstance(second, SequenceFailed)
            assert [_reward(one) for one in ours] == pytest.approx([_reward(one) for one in meant], abs=1e-5)
    assert scorer.score_now(asked) == meant or stage in ("packing", "rows")
    assert not scorer._queue._num_running and not scorer._queue._tokens_running and not scorer._queue._waiting


async def test_a_fault_of_nobody_fails_nobody(scorer: RewardScorer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every third row fails, whoever is in it."""
    asked, original, calls = items(24), compute.RowComputer._forward, [0]
    meant = scorer.score_now(asked)

    def some_fail(*args: Any) -> Any:
        calls[0] += 1
        if calls[0] % 3 == 0:
            raise Fault("injected")
        return original(*args)

    monkeypatch.setattr(compute.RowComputer, "_forward", some_fail)
    async with running(scorer):
        found = await scorer.score_each(asked)
    assert [_reward(one) for one in found] == pytest.approx([_reward(one) for one in meant], abs=1e-5)


async def test_what_always_fails_fails_each_and_the_threads_live(
    scorer: RewardScorer, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = items(8)
    async with running(scorer):
        with monkeypatch.context() as broken:
            broken.setattr(ScoreHead, "forward", lambda *_: 1 / 0)
            found = await scorer.score_each(asked)
        assert all(isinstance(one, SequenceFailed) for one in found)
        assert all(isinstance(one, Score) for one in await scorer.score_each(asked))


async def test_a_card_that_reports_an_error_ends_the_scorer(
    scorer: RewardScorer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its context is of no use any more: the worker must end and be started again."""
    died = asyncio.Event()
    loop = asyncio.get_running_loop()

    def report(*_: Any) -> None:
        raise torch.AcceleratorError("CUDA error: device-side assert triggered")

    monkeypatch.setattr(ScoreHead, "forward", report)
    scorer.start(on_death=lambda _: loop.call_soon_threadsafe(died.set))
    asking = asyncio.create_task(scorer.score_each(items(3)))
    async with asyncio.timeout(60):
        await died.wait()
    asking.cancel()
    scorer.stop()


def _reward(outcome: Any) -> float:
    assert isinstance(outcome, Score), outcome
    return outcome.reward
