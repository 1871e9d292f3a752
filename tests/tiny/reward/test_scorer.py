"""The queue: requests share rows, failures stay with whom they belong to, memory that runs out splits the batch."""

from __future__ import annotations

import asyncio
import shutil
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from qserve.detect import detect
from qserve.errors import BrokenCheckpoint
from qserve.model.failures import SequenceFailed, WorkerStopping
from qserve.planner import PlanRequest
from qserve.reward.failures import TextRefused
from qserve.reward.items import Score, ScoreItem
from qserve.reward.open import open_scorer
from qserve.reward.scoring.scorer import RewardScorer
from qserve.reward.settings import RewardSettings
from tests.tiny.reward.test_formats import texts

Start = Callable[..., Any]


@pytest.fixture
def scorer(made: Callable[[str], Path]) -> RewardScorer:
    """One of its own: it is started, and its model is tampered with."""
    path = made("sequence-classification")
    return open_scorer(str(path), RewardSettings(), detect(), PlanRequest(dtype="float32"))


@asynccontextmanager
async def running(scorer: RewardScorer) -> AsyncIterator[RewardScorer]:
    scorer.start()
    try:
        yield scorer
    finally:
        scorer.stop()


async def test_requests_of_one_text_each_share_rows(scorer: RewardScorer) -> None:
    items = [ScoreItem(ids) for ids in texts(1, [30] * 64)]
    alone = scorer.score_now(items)
    before = scorer.stats.num_rows
    async with running(scorer):
        answers = await asyncio.gather(*(scorer.score([item]) for item in items))
    assert [answer[0].reward for answer in answers] == pytest.approx([score.reward for score in alone], abs=1e-5)
    assert scorer.stats.num_rows - before <= 4  # 1920 tokens; one request a row would be 64


async def test_a_scorer_that_was_stopped_starts_again(scorer: RewardScorer) -> None:
    (item,) = (ScoreItem(ids) for ids in texts(1, [30]))
    for _ in range(20):
        async with running(scorer):
            with pytest.raises(RuntimeError, match="run already"):
                scorer.start()
            gone = asyncio.create_task(scorer.score([ScoreItem(ids) for ids in texts(4, [500] * 3)]))
            await asyncio.sleep(0)
            gone.cancel()
            assert len(await asyncio.wait_for(scorer.score([item]), 60)) == 1


async def test_what_waits_when_a_scorer_stops_and_comes_later_fails(scorer: RewardScorer) -> None:
    async with running(scorer):
        waiting = asyncio.create_task(scorer.score([ScoreItem(ids) for ids in texts(4, [1000] * 20)]))
        await asyncio.sleep(0.05)
    for late in (waiting, scorer.score([ScoreItem([1, 2, 3])])):
        with pytest.raises(WorkerStopping):
            await asyncio.wait_for(late, 60)


async def test_a_caller_whose_loop_has_closed_takes_nobody_else_along(scorer: RewardScorer) -> None:
    def ask_and_leave() -> None:
        loop = asyncio.new_event_loop()
        asking = loop.create_task(scorer.score([ScoreItem(ids) for ids in texts(4, [1000] * 2)]))
        loop.run_until_complete(asyncio.sleep(0.01))
        asking.cancel()
        loop.close()

    async with running(scorer):
        await asyncio.to_thread(ask_and_leave)
        assert len(await asyncio.wait_for(scorer.score([ScoreItem([1, 2, 3])]), 60)) == 1


async def test_what_arrives_while_a_row_is_computed_fills_the_next(scorer: RewardScorer) -> None:
    async with running(scorer):
        first = asyncio.create_task(scorer.score([ScoreItem(ids) for ids in texts(2, [900])]))
        await asyncio.sleep(0.02)
        rest = [asyncio.create_task(scorer.score([ScoreItem(ids)])) for ids in texts(3, [20] * 30)]
        await asyncio.gather(first, *rest)
    assert scorer.stats.num_rows <= 4
    assert scorer.stats.num_items == 31


async def test_a_cancelled_request_is_not_computed(scorer: RewardScorer) -> None:
    async with running(scorer):
        first = asyncio.create_task(scorer.score([ScoreItem(ids) for ids in texts(4, [1000, 1000])]))
        await asyncio.sleep(0.02)
        gone = asyncio.create_task(scorer.score([ScoreItem(ids) for ids in texts(5, [1000] * 5)]))
        await asyncio.sleep(0)
        gone.cancel()
        await first
        await scorer.score([ScoreItem([1, 2, 3])])
    assert scorer.stats.num_items <= 4


async def test_a_bad_item_is_refused_before_anything_runs(scorer: RewardScorer) -> None:
    async with running(scorer):
        with pytest.raises(TextRefused, match="the text is empty"):
            await scorer.score([ScoreItem([1]), ScoreItem([])])
        with pytest.raises(TextRefused, match="max_length"):
            await scorer.score([ScoreItem([1] * 100_000)])
    assert scorer.stats.num_rows == 0


def poison(scorer: RewardScorer, token: int) -> None:
    """NaN where one rare token is embedded: the usual texts are fine."""
    scorer.loaded.body.get_input_embeddings().weight.data[token] = float("nan")


async def test_an_item_that_is_no_number_fails_alone(scorer: RewardScorer) -> None:
    poison(scorer, 999)
    good, bad = texts(6, [40], 900)[0], [1, 999, 2]
    async with running(scorer):
        outcomes = await scorer.score_each([ScoreItem(good), ScoreItem(bad), ScoreItem(good[:20])])
        with pytest.raises(SequenceFailed, match="not a number"):
            await scorer.score([ScoreItem(bad)])
    assert [isinstance(outcome, Score) for outcome in outcomes] == [True, False, True]


class Scarce(torch.nn.Module):
    """A body on a machine that has memory for `most` tokens."""

    def __init__(self, body: Any, most: int, error: Exception) -> None:
        super().__init__()
        self.body, self.most, self.error = body, most, error

    def get_input_embeddings(self) -> Any:
        return self.body.get_input_embeddings()

    def forward(self, input_ids: torch.Tensor, **kwargs: Any) -> Any:
        if input_ids.numel() > self.most:
            raise self.error
        return self.body(input_ids=input_ids, **kwargs)


ERRORS = [
    RuntimeError(
        "[enforce fail at alloc_cpu.cpp:1] . DefaultCPUAllocator: can't allocate memory: you tried to allocate 1"
    ),
    torch.OutOfMemoryError("CUDA out of memory."),
]


@pytest.mark.parametrize("error", ERRORS, ids=["CPU", "card"])
def test_memory_that_runs_out_splits_the_batch_and_goes_on(scorer: RewardScorer, error: Exception) -> None:
    prompt = texts(7, [100])[0]
    ids = [*texts(8, [60, 50, 200, 10]), *(prompt + tail for tail in texts(9, [20] * 8))]
    items = [ScoreItem(one) for one in ids]
    alone = [scorer.score_now([item])[0] for item in items]
    object.__setattr__(scorer.loaded, "body", Scarce(scorer.loaded.body, 256, error))
    together = scorer.score_now(items)
    assert [score.reward for score in together] == pytest.approx([score.reward for score in alone], abs=1e-5)
    assert scorer.stats.num_out_of_memory > 0


def test_a_text_for_which_there_is_no_memory_fails_alone(scorer: RewardScorer) -> None:
    object.__setattr__(scorer.loaded, "body", Scarce(scorer.loaded.body, 128, ERRORS[0]))
    small, large = scorer.score_now([ScoreItem([1, 2, 3]), ScoreItem([4] * 300)])
    assert isinstance(small, Score)
    assert isinstance(large, SequenceFailed)
    assert large.code == "out_of_memory"


def test_a_broken_forward_fails_its_row_and_the_next_is_served(scorer: RewardScorer) -> None:
    body = scorer.loaded.body
    object.__setattr__(scorer.loaded, "body", Scarce(body, 1, ValueError("a mistake")))
    (failed,) = scorer.score_now([ScoreItem([1, 2, 3])])
    assert "a mistake" in str(failed)
    object.__setattr__(scorer.loaded, "body", body)
    assert isinstance(scorer.score_now([ScoreItem([1, 2, 3])])[0], Score)


def tampered(source: Path, folder: Path, change: Callable[[dict[str, torch.Tensor]], None]) -> str:
    shutil.copytree(source, folder)
    state = load_file(folder / "model.safetensors")
    change(state)
    save_file(state, folder / "model.safetensors")
    return str(folder)


TAMPERED: dict[str, tuple[Callable[[dict[str, torch.Tensor]], None], str]] = {
    "NaN in the head": (lambda s: s["score.weight"].fill_(float("nan")), "values that are not numbers"),
    "NaN in the body": (lambda s: s["model.norm.weight"].fill_(float("nan")), "can't be used: .*not a number"),
    "a layer that is missing": (lambda s: s.pop("model.layers.1.mlp.up_proj.weight"), "lacks 1 of the body's tensors"),
    "a layer of another shape": (
        lambda s: s.update({"model.layers.1.mlp.up_proj.weight": torch.zeros(3, 64)}),
        r"another shape .*\[3, 64\], expected \[128, 64\]",
    ),
}


@pytest.mark.parametrize("what", TAMPERED)
def test_a_broken_checkpoint_is_refused_at_loading(what: str, made: Callable[[str], Path], tmp_path: Path) -> None:
    change, message = TAMPERED[what]
    path = tampered(made("sequence-classification"), tmp_path / "model", change)  # type: ignore[arg-type]
    with pytest.raises(BrokenCheckpoint, match=message):
        open_scorer(path, RewardSettings(), detect(), PlanRequest(dtype="float32"))


def test_a_file_of_code_is_never_run(tmp_path: Path, made: Callable[[str], Path]) -> None:
    class Evil:
        def __reduce__(self) -> Any:
            return Path.touch, (tmp_path / "ran",)

    torch.save({"reward_head.weight": Evil()}, tmp_path / "model.pt")
    with pytest.raises(BrokenCheckpoint, match="code in such files is never run"):
        open_scorer(
            str(tmp_path / "model.pt"),
            RewardSettings(base=str(made("sequence-classification"))),
            detect(),
            PlanRequest(dtype="float32"),
        )
    assert not (tmp_path / "ran").exists()


async def test_two_rows_at_once_score_as_one(made: Callable[[str], Path]) -> None:
    loaded = open_scorer(str(made("sequence-classification")), RewardSettings(), detect(), PlanRequest(dtype="float32"))
    limits: dict[str, Any] = {"max_length": 1024, "max_num_batched_tokens": 1024}
    both = RewardScorer(loaded.loaded, RewardSettings(), **limits, rows_at_once=2)
    items = [ScoreItem(ids) for ids in texts(10, [300, 20, 1000, 64, 500, 900, 128, 5] * 3)]
    meant = [score.reward for score in loaded.score_now(items) if isinstance(score, Score)]
    now = [score.reward for score in both.score_now(items) if isinstance(score, Score)]
    async with running(both):
        answers = await asyncio.gather(*(both.score([item]) for item in items))
    assert now == pytest.approx(meant, abs=1e-5)
    assert [answer[0].reward for answer in answers] == pytest.approx(meant, abs=1e-5)
    assert both.stats.num_items == 2 * len(items)


async def test_a_scorer_that_is_stopped_ends_its_threads(scorer: RewardScorer) -> None:
    async with running(scorer):
        await scorer.score([ScoreItem([1, 2, 3])])
    for _ in range(100):
        if not [thread for thread in threading.enumerate() if thread.name.startswith("reward-row")]:
            return
        await asyncio.sleep(0.05)
    raise AssertionError("threads are left")
