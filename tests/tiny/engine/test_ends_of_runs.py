"""Whoever makes one of those that run leave, or all of them, ends or drops the run of decoding steps that has them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from qserve.engines.transformers.worker.batching.continuous import LibraryLoop
from qserve.engines.transformers.worker.batching.turns import Turn
from qserve.engines.transformers.worker.decoding.run import DecodeRun
from tests.tiny.engine.paths import runs_of_a_card
from tests.tiny.engine.running import prompts, running, sequence, tokens_of

NUM_TOKENS = 100


async def test_a_run_ends_before_one_of_it_is_preempted(monkeypatch: pytest.MonkeyPatch) -> None:
    kind, model = runs_of_a_card(monkeypatch)
    steps: list[int] = []
    runs: list[Any] = []
    step, take_out = DecodeRun.step, LibraryLoop.take_out
    monkeypatch.setattr(DecodeRun, "step", lambda run: (step(run), steps.append(1)))
    monkeypatch.setattr(
        LibraryLoop, "take_out", lambda library, name: (runs.append(batcher._decoding._run), take_out(library, name))
    )
    first, second, other = prompts(3, 20)
    async with running(kind, model, max_num_seqs=2) as batcher:
        both = [sequence(f"r{index}", prompt, NUM_TOKENS) for index, prompt in enumerate((first, second))]
        last = sequence("other", other, 4)
        both[0].turn = both[1].turn = Turn("a", "a's")
        last.turn = Turn("b", "b's")
        waiting = [asyncio.create_task(tokens_of(batcher, one)) for one in both]
        async with asyncio.timeout(60):
            while len(steps) < 3:
                await asyncio.sleep(0.001)
        await tokens_of(batcher, last)
        await asyncio.gather(*waiting)
    assert runs and not any(runs)


async def test_a_run_that_failed_is_dropped_with_what_the_library_knew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its books are of requests that are no more."""
    kind, model = runs_of_a_card(monkeypatch)
    failed: list[DecodeRun] = []
    ended: list[DecodeRun] = []
    step, end = DecodeRun.step, DecodeRun.end

    def fails_once(run: DecodeRun) -> None:
        if not failed and len(run._rows) == 2:
            failed.append(run)
            raise RuntimeError("injected")
        step(run)

    monkeypatch.setattr(DecodeRun, "step", fails_once)
    monkeypatch.setattr(DecodeRun, "end", lambda run: (ended.append(run), end(run))[1])
    async with running(kind, model) as batcher:
        asked = [sequence(f"r{index}", prompt, NUM_TOKENS) for index, prompt in enumerate(prompts(2, 20))]
        await asyncio.gather(*(tokens_of(batcher, one) for one in asked))
    assert failed and ended and failed[0] not in ended
