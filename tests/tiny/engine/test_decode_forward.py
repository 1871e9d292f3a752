"""A decoding step's forward as cards run it: its operations, and what a capture of it replays."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from torch.fx.experimental.proxy_tensor import make_fx

from qserve.engines.transformers.kernels.decode_sizes import MAX_GRAPHS, batch_sizes
from qserve.engines.transformers.kernels.kv_pages import PAGE_TOKENS
from qserve.engines.transformers.worker.attention.kernels import GATHERED, ChosenKernel
from qserve.engines.transformers.worker.attention.pages import gathered
from qserve.engines.transformers.worker.batching import paged
from qserve.engines.transformers.worker.batching.batcher import GraphMemory
from qserve.engines.transformers.worker.batching.paged import PagedBatcher
from qserve.engines.transformers.worker.decoding import stages
from qserve.engines.transformers.worker.decoding.body import DenseSteps
from qserve.engines.transformers.worker.decoding.choose import Layers, choose_layers
from qserve.engines.transformers.worker.decoding.forward import Forwards
from tests.tiny.engine.families import build
from tests.tiny.engine.running import generated, prompts, running, sequence, tokens_of


class Traced:
    """What CUDA graphs do: a forward is recorded once, for tensors at their places, and replayed without its Python."""

    def __init__(self) -> None:
        self.num_captured = self.num_replayed = 0

    def capture(self, forward: Callable[[], Any]) -> Callable[[], None]:
        recorded = make_fx(forward)()
        self.num_captured += 1

        def replay() -> None:
            self.num_replayed += 1
            recorded()

        return replay


@pytest.mark.parametrize("most", [*range(1, 66), 100, 256, 1000, 1024])
def test_batches_have_few_sizes(most: int) -> None:
    sizes = batch_sizes(most)
    assert sizes[-1] == most and sorted(set(sizes)) == list(sizes) and len(sizes) <= MAX_GRAPHS
    assert sizes[:4] == (1, 2, 4, 8)[: len(sizes) - 1] + sizes[-1:] if most < 8 else sizes[:4] == (1, 2, 4, 8)
    steps = [after - before for before, after in pairwise(sizes[4:])]
    assert len(set(steps[:-1])) <= 1 and all(step % 8 == 0 for step in steps[:-1])


async def test_what_is_captured_says_what_generate_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches that are filled up, that shrink, and grow over several pages: all sizes at start, and none later."""
    traced = Traced()
    _as_on_a_card(monkeypatch, traced.capture)
    model, reference = build("qwen3"), build("qwen3")
    asked = prompts(5, 20)
    async with running(PagedBatcher, model) as batcher:
        assert traced.num_captured == len(batch_sizes(16)) == batcher.step_path.num_captured
        monkeypatch.setattr(Forwards, "_run", lambda *_: pytest.fail("a step ran that was not captured"))
        for _ in range(2):
            ones = [sequence(f"r{i}", prompt, 10 + 16 * i) for i, prompt in enumerate(asked)]
            said = await asyncio.gather(*(tokens_of(batcher, one) for one in ones))
            assert said == [generated(reference, prompt, 10 + 16 * i) for i, prompt in enumerate(asked)]
    assert traced.num_captured == len(batch_sizes(16))
    assert traced.num_replayed > 20


async def test_keys_that_are_copied_together_are_not_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    """A graph that serves every length would copy the longest each time."""
    traced = Traced()
    _as_on_a_card(monkeypatch, traced.capture)
    monkeypatch.setattr(paged, "choose_kernel", lambda *_: ChosenKernel(GATHERED, gathered, PAGE_TOKENS, {}))
    model, reference = build("qwen3"), build("qwen3")
    prompt = prompts(1, 20)[0]
    async with running(PagedBatcher, model) as batcher:
        assert await tokens_of(batcher, sequence("one", prompt, 12)) == generated(reference, prompt, 12)
        assert "no kernel reads keys in their pages" in batcher.step_path.why_not_captured
    assert traced.num_captured == 0


def _as_on_a_card(monkeypatch: pytest.MonkeyPatch, capture: Callable[[Callable[[], Any]], Callable[[], None]]) -> None:
    chosen = ChosenKernel("some", lambda *step: gathered(*step), PAGE_TOKENS, {}, reads_prompts=False)
    monkeypatch.setattr(paged, "choose_kernel", lambda *_: chosen)
    monkeypatch.setattr(paged, "decodes_in_runs", lambda *_: True)
    monkeypatch.setattr(stages, "choose_layers", lambda model: Layers(DenseSteps.of(model), capture))


async def test_what_can_t_be_captured_runs_as_it_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(forward: Callable[[], Any]) -> Any:
        raise RuntimeError("operation not permitted when stream is capturing")

    _as_on_a_card(monkeypatch, refuses)
    model, reference = build("qwen3"), build("qwen3")
    prompt = prompts(1, 20)[0]
    async with running(PagedBatcher, model) as batcher:
        assert await tokens_of(batcher, sequence("one", prompt, 12)) == generated(reference, prompt, 12)
        assert "stream is capturing (batch size 16)" in batcher.step_path.why_not_captured


def test_models_whose_layers_are_other_are_left_to_the_library() -> None:
    assert choose_layers(build("qwen3")).dense is not None
    assert choose_layers(build("qwen3-moe")).dense is None
    offloaded = build("qwen3")
    offloaded.model.layers[0]._hf_hook = object()
    assert choose_layers(offloaded).dense is None


_KERNELS = """
import torch
from qserve.engines.transformers.worker.attention.kernels import Heads
from qserve.engines.transformers.worker.decoding import operations, triton_kernels
from qserve.engines.transformers.worker.decoding.check import check_operation
from qserve.model.trials.verdicts import TrialRefused
cpu, kernels = torch.device("cpu"), {name: getattr(triton_kernels, name) for name in operations.PLAIN}
for name, kernel in kernels.items():
    check_operation(name, kernel, cpu, Heads(4, 2, 96, torch.bfloat16), 200)
    check_operation(name, kernel, cpu, Heads(2, 2, 64, torch.float32), 64)
try:
    check_operation("silu_and_multiply", lambda gate, up: gate * up, cpu, Heads(4, 2, 64, torch.bfloat16), 64)
except TrialRefused:
    pass
else:
    raise AssertionError("a kernel that is wrong is right")
"""


def test_triton_s_kernels_do_what_torch_s_operations_do() -> None:
    """In Triton's interpreter, which runs them on a CPU; the same comparison is made at start on a card."""
    pytest.importorskip("triton")
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, "-c", _KERNELS], env=environment, check=True, timeout=200)


async def test_a_plan_without_graphs_captures_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their memory would be nobody's."""
    traced = Traced()
    _as_on_a_card(monkeypatch, traced.capture)
    model, reference = build("qwen3"), build("qwen3")
    prompt = prompts(1, 20)[0]
    async with running(PagedBatcher, model, captures=False) as batcher:
        assert await tokens_of(batcher, sequence("one", prompt, 6)) == generated(reference, prompt, 6)
    assert traced.num_captured == 0


def test_what_captures_took_is_told_apart_from_the_allocator_s() -> None:
    gib = 1024**3
    assert GraphMemory.since((10 * gib, 4 * gib), (8 * gib, 5 * gib)) == GraphMemory(2 * gib, gib)
    others_ended = GraphMemory.since((10 * gib, 4 * gib), (11 * gib, 4 * gib))
    assert others_ended == GraphMemory()
