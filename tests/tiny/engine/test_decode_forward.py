"""A decoding step's forward as cards run it: its operations, and what a capture of it replays."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from torch.fx.experimental.proxy_tensor import make_fx

from qserve.engines.transformers.kernels.decode_sizes import batch_size_of
from qserve.engines.transformers.kernels.kv_pages import PAGE_TOKENS
from qserve.engines.transformers.worker.attention.kernels import ChosenKernel
from qserve.engines.transformers.worker.attention.pages import gathered
from qserve.engines.transformers.worker.batching import paged
from qserve.engines.transformers.worker.batching.batcher import GraphMemory
from qserve.engines.transformers.worker.batching.paged import PagedBatcher
from qserve.engines.transformers.worker.decoding import stages
from qserve.engines.transformers.worker.decoding.body import DenseSteps
from qserve.engines.transformers.worker.decoding.buffers import DecodeBuffers
from qserve.engines.transformers.worker.decoding.choose import Layers, choose_layers
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


def test_batches_have_few_sizes() -> None:
    sizes = [batch_size_of(rows) for rows in range(1, 257)]
    assert all(size >= rows for rows, size in enumerate(sizes, start=1))
    assert sizes[:9] == [1, 2, 4, 4, 8, 8, 8, 8, 16]
    assert sizes[63] == 64
    assert len(set(sizes)) <= 24


@pytest.mark.parametrize("family", ["qwen3"])
async def test_what_is_captured_says_what_generate_says(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches that are filled up, that shrink, and that come back to a size that was captured."""
    traced = Traced()

    def capture(forward: Callable[[], Any]) -> Callable[[], None]:
        buffers = next(c.cell_contents for c in forward.__closure__ or () if isinstance(c.cell_contents, DecodeBuffers))
        before = buffers.positions.clone()
        replay = traced.capture(forward)
        buffers.positions.copy_(before)  # a trace runs what it records, and a capture does not
        return replay

    monkeypatch.setattr(paged, "choose_kernel", lambda *_: ChosenKernel("gathered", gathered, PAGE_TOKENS, {}))
    monkeypatch.setattr(paged, "decodes_in_runs", lambda *_: True)
    monkeypatch.setattr(stages, "choose_layers", lambda model: Layers(DenseSteps.of(model), capture))
    model, reference = build(family), build(family)
    asked = prompts(5, 20)
    async with running(PagedBatcher, model) as batcher:
        for _ in range(2):
            ones = [sequence(f"r{i}", prompt, 10 + 6 * i) for i, prompt in enumerate(asked)]
            said = await asyncio.gather(*(tokens_of(batcher, one) for one in ones))
            assert said == [generated(reference, prompt, 10 + 6 * i) for i, prompt in enumerate(asked)]
    assert 2 <= traced.num_captured <= 8
    assert traced.num_replayed > 20


async def test_what_can_t_be_captured_runs_as_it_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(forward: Callable[[], Any]) -> Any:
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(paged, "decodes_in_runs", lambda *_: True)
    monkeypatch.setattr(stages, "choose_layers", lambda model: Layers(DenseSteps.of(model), refuses))
    model, reference = build("qwen3"), build("qwen3")
    prompt = prompts(1, 20)[0]
    async with running(PagedBatcher, model) as batcher:
        assert await tokens_of(batcher, sequence("one", prompt, 12)) == generated(reference, prompt, 12)


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
    monkeypatch.setattr(paged, "decodes_in_runs", lambda *_: True)
    monkeypatch.setattr(stages, "choose_layers", lambda model: Layers(DenseSteps.of(model), traced.capture))
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
