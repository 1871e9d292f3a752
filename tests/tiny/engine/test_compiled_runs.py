"""Runs of decoding steps on a CPU, by compiled layers: the tokens of the library's steps, whatever comes between."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

from qserve.engines.transformers.worker.batching import paged
from qserve.engines.transformers.worker.batching.batcher import Sequence
from qserve.engines.transformers.worker.batching.paged import PagedBatcher
from qserve.engines.transformers.worker.decoding.compiled import CompiledForwards, CompiledRun
from qserve.model import packed_linear
from qserve.model.cpu.build import why_none
from qserve.model.cpu.kernels import can_attend
from qserve.model.cpu.layers import CompiledLayers
from qserve.model.cpu.linear import takes_bfloat16
from tests.tiny.engine.families import build
from tests.tiny.engine.running import choices_of, come_and_go, idle, prompts, running, sequence, tokens_of

pytestmark = pytest.mark.skipif(why_none() is not None, reason=str(why_none()))
LIMITS: dict[str, dict[str, int]] = {"roomy": {}, "two at once": {"max_num_seqs": 2}}
"""In which nothing is read twice: in bf16 a prompt's pass rounds otherwise than a step (test_compiled_step.py)."""


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The rows of each step that a run has taken."""
    if not takes_bfloat16() or not can_attend(32):
        pytest.skip("this processor has no steps in one call")
    taken: list[int] = []
    step = CompiledRun.step

    def noted(run: CompiledRun) -> None:
        taken.append(len(run._rows))
        step(run)

    monkeypatch.setattr(CompiledRun, "step", noted)
    monkeypatch.setattr(packed_linear, "_WORTH_PACKING_BYTES", 0)
    return taken


def packed(family: str = "qwen3") -> Any:
    model = build(family).bfloat16()
    packed_linear.pack_linears(model)
    return model


async def by_the_library(asked: list[Sequence], **limits: int) -> list[list[int]]:
    """One after the other, by its own steps through the same layers."""
    compile_steps = paged.compile_steps
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(paged, "compile_steps", lambda *of: replace(compile_steps(*of), layers=None))
        async with running(PagedBatcher, packed(), **limits) as batcher:
            assert batcher._decoding is None
            return [await tokens_of(batcher, one) for one in asked]


@pytest.mark.parametrize("name", LIMITS)
async def test_a_run_says_what_the_library_says(name: str, steps: list[int]) -> None:
    """Answers of different lengths, so that runs end and begin; pages fill up in the middle of them."""
    asked = prompts(8, 20)

    def ones() -> list[Sequence]:
        return [sequence(f"r{i}", prompt, 12 + 7 * i) for i, prompt in enumerate(asked)]

    async with running(PagedBatcher, packed(), **LIMITS[name]) as batcher:
        said = await asyncio.gather(*(tokens_of(batcher, one) for one in ones()))
        await idle(batcher)
        assert not batcher._stages._known
    taken = len(steps)
    assert taken > 20
    assert max(steps) >= min(2, LIMITS[name].get("max_num_seqs", 8))
    assert said == await by_the_library(ones(), **LIMITS[name])
    assert len(steps) == taken


async def test_tokens_are_told_while_the_next_step_computes(steps: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Not before it: who waits for them runs Python, and between two steps nobody computes."""
    left: list[tuple[int, bool]] = []
    step, run_layers = CompiledRun.step, CompiledLayers._run
    now: list[CompiledRun] = []

    def stepped(run: CompiledRun) -> None:
        now[:] = [run]
        step(run)
        left.append((len(run._unreported), run.is_over))

    def computed(layers: CompiledLayers, *of: Any) -> None:
        assert not now or not now[0]._unreported
        run_layers(layers, *of)

    monkeypatch.setattr(CompiledRun, "step", stepped)
    monkeypatch.setattr(CompiledLayers, "_run", computed)
    async with running(PagedBatcher, packed()) as batcher:
        await tokens_of(batcher, sequence("one", prompts(1, 20)[0], 8))
    assert [untold for untold, is_over in left if not is_over] == [1] * (len(left) - 1)
    assert left[-1] == (0, True)


async def test_those_who_come_and_go_in_the_middle_change_nothing(steps: list[int]) -> None:
    asked = prompts(5, 25)
    async with running(PagedBatcher, packed()) as batcher:
        said = await come_and_go(batcher, asked, 60, steps)
        await idle(batcher)
    assert said == await by_the_library([sequence(f"r{i}", prompt, 60) for i, prompt in enumerate(asked)])


async def test_a_stop_token_ends_a_sequence_at_once_and_its_pages_are_shared(steps: list[int]) -> None:
    (prompt,) = prompts(1, 40)
    (whole,) = await by_the_library([sequence("whole", prompt, 80)])
    end = next(token for place, token in enumerate(whole) if place > 50 and token not in whole[:place])
    async with running(PagedBatcher, packed()) as batcher:
        one = sequence("first", prompt, 80, stop_token_ids=frozenset({end}))
        first = await tokens_of(batcher, one)
        assert first == whole[: whole.index(end) + 1]
        assert one.outbox.empty()
        again = await tokens_of(batcher, sequence("second", [*prompt, *first], 10))
        assert batcher.load().num_shared_tokens >= 64
    assert again == whole[len(first) : len(first) + 10]


async def test_all_kinds_of_draws_are_the_same_alone_and_in_company(steps: list[int]) -> None:
    asked = prompts(6, 20)
    kinds: list[dict[str, Any]] = [
        {"temperature": 0.0},
        {"temperature": 1.0, "top_p": 0.9},
        {"temperature": 0.7, "top_k": 20, "top_p": 0.8},
        {"temperature": 1.0, "repetition_penalty": 1.2},
        {"temperature": 0.9, "frequency_penalty": 0.5, "min_p": 0.02},
        {"temperature": 0.0, "num_logprobs": 3},
    ]

    def ones() -> list[Sequence]:
        return [sequence(f"r{i}", p, 25, seed=i, **kind) for i, (p, kind) in enumerate(zip(asked, kinds, strict=True))]

    async with running(PagedBatcher, packed()) as batcher:
        together = await asyncio.gather(*(choices_of(batcher, one) for one in ones()))
    assert [[c.token_id for c in one] for one in together] == await by_the_library(ones())
    assert max(steps) == len(asked)


async def test_a_forward_that_fails_in_a_run_loses_nothing(steps: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """What was drawn before it is told once, and the sequences are read again and go on."""
    forward, calls = CompiledForwards.__call__, []

    def failing(forwards: CompiledForwards, *given: Any) -> torch.Tensor:
        calls.append(1)
        if len(calls) == 9:
            raise RuntimeError("injected")
        return forward(forwards, *given)

    asked = prompts(3, 25)
    monkeypatch.setattr(CompiledForwards, "__call__", failing)
    async with running(PagedBatcher, packed()) as batcher:
        said = await asyncio.gather(*(tokens_of(batcher, sequence(f"r{i}", p, 30)) for i, p in enumerate(asked)))
    assert len(calls) > 9
    assert [len(tokens) for tokens in said] == [30, 30, 30]
    meant = await by_the_library([sequence(f"r{i}", p, 9) for i, p in enumerate(asked)])
    assert [tokens[:9] for tokens in said] == meant, "one of the prompt's pass, eight of steps that went well"
