"""Which code computes a model's steps, and which kernels were refused, as `code_path` tells it."""

from __future__ import annotations

import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from bench.step_counts import hold
from qserve.engines.transformers.kernels.decode_sizes import batch_sizes
from qserve.engines.transformers.kernels.kv_pages import PAGE_TOKENS
from qserve.engines.transformers.kernels.refusals import CAPTURE, COSTS, OPERATIONS, refusal
from qserve.engines.transformers.worker.attention.kernels import ChosenKernel
from qserve.engines.transformers.worker.attention.pages import gathered
from qserve.engines.transformers.worker.batching import paged
from qserve.engines.transformers.worker.batching.paged import PagedBatcher
from qserve.engines.transformers.worker.batching.rows.batcher import RowBatcher
from qserve.engines.transformers.worker.batching.step_path import StepPath
from qserve.engines.transformers.worker.code_path import code_path
from qserve.engines.transformers.worker.decoding import stages
from qserve.engines.transformers.worker.decoding.body import DenseSteps
from qserve.engines.transformers.worker.decoding.choose import Layers
from qserve.engines.transformers.worker.decoding.operations import PLAIN
from qserve.model.cuda.choices import chosen_for, refusals_for
from qserve.model.cuda.products import BY_PIECES, CHOSEN, KERNEL, REFUSED
from tests.tiny.engine.families import build
from tests.tiny.engine.running import prompts, running, sequence, tokens_of


def as_on_a_card(monkeypatch: pytest.MonkeyPatch, layers: Callable[[Any], Layers]) -> None:
    chosen = ChosenKernel("some", lambda *step: gathered(*step), PAGE_TOKENS, {}, reads_prompts=False)
    monkeypatch.setattr(paged, "choose_kernel", lambda *_: chosen)
    monkeypatch.setattr(paged, "compile_steps", lambda model, cache: None)
    monkeypatch.setattr(paged, "decodes_in_runs", lambda *_: True)
    monkeypatch.setattr(stages, "choose_layers", layers)


def replayed(forward: Callable[[], object]) -> Callable[[], None]:
    """In the place of a capture: a replay computes the step, or its logits would be whatever lay in memory."""

    def replay() -> None:
        forward()

    return replay


@pytest.mark.parametrize("kind", [PagedBatcher, RowBatcher])
async def test_a_cpu_refuses_nothing(kind: type[Any]) -> None:
    model = build("qwen3")
    async with running(kind, model) as batcher:
        await tokens_of(batcher, sequence("one", prompts(1, 20)[0], 4))
        path = code_path(model, batcher)
    assert path.batcher == kind.__name__ and path.attention == batcher.attention
    assert path.path in ("library's modules", "compiled layers") and path.why_not_captured
    assert path.is_as_intended and not path.is_dense and not path.is_captured
    assert (path.num_captured, path.products, path.refused) == (0, {}, ())


async def test_captured_steps_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    as_on_a_card(monkeypatch, lambda model: Layers(DenseSteps.of(model), replayed))
    model = build("qwen3")
    async with running(PagedBatcher, model) as batcher:
        before = code_path(model, batcher)
        await tokens_of(batcher, sequence("one", prompts(1, 20)[0], 4))
        path = code_path(model, batcher)
    assert before.num_captured == path.num_captured == len(batch_sizes(16))
    assert path.path == "dense layers, captured" and path.is_dense and path.is_captured and not path.why_not_captured
    assert path.is_as_intended


async def test_a_capture_that_fails_is_told(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def refuses(forward: Callable[[], Any]) -> Any:
        raise RuntimeError("operation not permitted when stream is capturing\nmore lines of it")

    as_on_a_card(monkeypatch, lambda model: Layers(DenseSteps.of(model), refuses))
    model = build("qwen3")
    async with running(PagedBatcher, model) as batcher:
        await tokens_of(batcher, sequence("one", prompts(1, 20)[0], 4))
        path = code_path(model, batcher)
    reason = "RuntimeError: operation not permitted when stream is capturing (batch size 16)"
    assert path.refused == (refusal(CAPTURE, reason),) and not path.is_as_intended
    assert path.path == "dense layers" and path.why_not_captured == reason
    assert caplog.text.count(COSTS[CAPTURE]) == 1 and "more lines of it" in caplog.text
    told = json.loads(json.dumps(path.as_dict()))
    assert told["refused"] == [{"kernel": CAPTURE, "reason": reason, "cost": COSTS[CAPTURE]}]


async def test_a_plan_without_graphs_is_no_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    as_on_a_card(monkeypatch, lambda model: Layers(DenseSteps.of(model), replayed))
    model = build("qwen3")
    async with running(PagedBatcher, model, captures=False) as batcher:
        path = code_path(model, batcher)
    assert path.path == "dense layers" and "the plan" in path.why_not_captured and path.is_as_intended


def test_products_of_this_model_alone_are_told() -> None:
    model = nn.Sequential(
        nn.Sequential(nn.Linear(64, 32), nn.Linear(64, 48)), nn.Sequential(nn.Linear(64, 16))
    ).bfloat16()
    hold(model[0], "nf4")
    hold(model[1], "int8")
    CHOSEN.update({("cpu", "nf4", 32, 64, 16): KERNEL, ("cpu", "nf4", 48, 64, 16): BY_PIECES})
    CHOSEN.update({("cpu", "int8", 16, 64, 1): BY_PIECES, ("cpu", "int8", 999, 64, 1): KERNEL})
    REFUSED.update({("cpu", "nf4", 48, 64, 16): "it is wrong", ("cpu", "int8", 999, 64, 1): "of another model"})
    try:
        assert chosen_for(model) == {"nf4": {16: (KERNEL, BY_PIECES)}, "int8": {1: (BY_PIECES,)}}
        assert refusals_for(model) == (refusal("4-bit product", "it is wrong"),)
        batcher: Any = SimpleNamespace(attention="sdpa", step_path=StepPath(refused=(refusal(CAPTURE, "no"),)))
        path = code_path(model, batcher)
        assert [one.kernel for one in path.refused] == ["4-bit product", CAPTURE]
        assert path.products == chosen_for(model)
    finally:
        CHOSEN.clear()
        REFUSED.clear()


_VIEWS = {"slice", "unsqueeze", "split", "expand", "view", "detach", "alias", "select", "empty", "empty_like"}


class Launches(TorchDispatchMode):
    num = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.num += func.overloadpacket.__name__ not in _VIEWS
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", PLAIN)
def test_what_stands_in_for_an_operation_launches_as_many_as_the_cost_says(name: str) -> None:
    def some(*shape: int) -> torch.Tensor:
        return torch.randn(*shape).bfloat16()

    arguments: dict[str, tuple[Any, ...]] = {
        "add_rms_norm": (some(3, 64), some(3, 64), some(64), 1e-6),
        "silu_and_multiply": (some(3, 64), some(3, 64)),
        "rotate_and_store": (
            some(3, 4, 32),
            some(3, 2, 32),
            some(3, 2, 32),
            some(32),
            some(32),
            1e-6,
            some(3, 32),
            some(3, 32),
            some(40, 2, 32),
            some(40, 2, 32),
            torch.tensor([1, 2, 3]),
        ),
    }
    with Launches() as launches:
        PLAIN[name](*arguments[name])
    assert launches.num == OPERATIONS[name][1]
