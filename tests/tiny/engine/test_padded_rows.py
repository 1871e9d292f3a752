"""Products meet few shapes whatever the lengths are: oneDNN keeps a kernel for each, at 0.7 MB."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from qserve.core.model_spec import ModelSpec
from qserve.engines.transformers.kernels.shapes import MAX_KERNELS, padded_length
from qserve.engines.transformers.plan.memory import num_kernels
from qserve.engines.transformers.worker.batching.progress import beat_with_layers
from qserve.engines.transformers.worker.batching.prompt_logprobs import PromptToScore, score_prompts
from qserve.engines.transformers.worker.batching.rows.batcher import RowBatcher
from qserve.model.cpu.padded_rows import bound_kernels, pad_linear_layers, with_padded_rows
from qserve.worker.heartbeat import Heartbeat
from tests.tiny.engine.families import build
from tests.tiny.engine.loading import running
from tests.tiny.engine.running import running as batching
from tests.tiny.engine.running import sequence, tokens_of

pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.script_method:DeprecationWarning")

Shapes = set[tuple[int, ...]]
FEW = {padded_length(rows) for rows in range(1, 1025)}


@pytest.fixture
def shapes(monkeypatch: pytest.MonkeyPatch) -> Iterator[Shapes]:
    """(rows, inputs, outputs) of every linear layer that was computed."""
    seen: Shapes = set()
    original = torch.nn.functional.linear

    def linear(states: torch.Tensor, weight: torch.Tensor, *rest: Any) -> torch.Tensor:
        seen.add((states.numel() // states.shape[-1], *weight.T.shape))
        return original(states, weight, *rest)

    monkeypatch.setattr(torch.nn.functional, "linear", linear)
    yield seen


def prompts(count: int, seed: int = 3) -> list[list[int]]:
    draw = random.Random(seed)
    return [[draw.randrange(1000) for _ in range(draw.randint(1, 400))] for _ in range(count)]


async def test_chat_and_scored_prompts_of_forty_lengths_meet_the_planned_shapes(
    shapes: Shapes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("qserve.model.packed_linear.takes_bfloat16", lambda: False)  # products are torch's
    async with running("demo", "bf16") as engine:
        model, some = engine.loaded.model, prompts(40)
        told = (sequence(f"s{index}", one, 1 + index % 7) for index, one in enumerate(some))
        await asyncio.gather(*(tokens_of(engine.batcher, one) for one in told))
        with engine.batcher.exclusive():
            for one in some:
                score_prompts(model, [PromptToScore(one, 1, None)])
    assert {rows for rows, *_ in shapes} <= FEW
    most = num_kernels(ModelSpec.from_config(model.config.to_dict(), "demo"), 1024)
    assert 30 < len(shapes) <= most < MAX_KERNELS


async def test_a_hybrids_layers_meet_few_row_counts(shapes: Shapes) -> None:
    model = build("qwen3.5").to(torch.bfloat16).eval()
    pad_linear_layers(model)
    async with batching(RowBatcher, model, max_num_seqs=8) as batcher:
        told = (sequence(f"s{index}", one[:200], 4) for index, one in enumerate(prompts(20)))
        await asyncio.gather(*(tokens_of(batcher, one) for one in told))
    assert {rows for rows, *_ in shapes} <= FEW


def test_padding_changes_no_row() -> None:
    linear = torch.nn.Linear(24, 16)
    for states in (torch.randn(5, 24), torch.randn(3, 7, 24), torch.randn(1, 1, 24)):
        seen: list[int] = []

        def product(rows: torch.Tensor, seen: list[int] = seen) -> torch.Tensor:
            seen.append(rows.numel() // 24)
            return linear(rows)

        torch.testing.assert_close(with_padded_rows(product, states), linear(states))
        assert seen == [padded_length(states.numel() // 24)]


def test_the_cache_is_bounded_unless_the_environment_says_how(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "ONEDNN_PRIMITIVE_CACHE_CAPACITY"
    monkeypatch.delenv(name, raising=False)
    bound_kernels()
    assert os.environ[name] == str(MAX_KERNELS)
    monkeypatch.setenv(name, "7")
    bound_kernels()
    assert os.environ[name] == "7"


async def test_a_step_beats_with_each_layer(tmp_path: Path) -> None:
    """A long prefill is no hang, on the compiled path, too."""
    async with running("demo", "bf16") as engine:
        beats = Heartbeat(tmp_path / "beat")
        beat_with_layers(engine.loaded.model, beats)
        await tokens_of(engine.batcher, sequence("s", prompts(1)[0], 1))
        assert beats._num_steps >= len(engine.loaded.model.get_decoder().layers)
