"""A kernel that fails on the card at hand, brought about on a CPU: what is told, and what runs in its place."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch

from qserve.engines.transformers.kernels.attention_kernels import Candidates
from qserve.engines.transformers.kernels.kv_pages import PAGE_TOKENS
from qserve.engines.transformers.kernels.refusals import (
    CAPTURE,
    COSTS,
    OPERATIONS,
    PAGED_ATTENTION,
    TOP_P_DRAW,
    Refusal,
    refusal,
)
from qserve.engines.transformers.worker import kernel_trial
from qserve.engines.transformers.worker.api.memory import measured_memory
from qserve.engines.transformers.worker.attention import kernels, sources
from qserve.engines.transformers.worker.attention.kernels import GATHERED, ChosenKernel, Heads, choose_kernel
from qserve.engines.transformers.worker.attention.pages import gathered
from qserve.engines.transformers.worker.batching import paged
from qserve.engines.transformers.worker.batching.paged import PagedBatcher
from qserve.engines.transformers.worker.code_path import code_path
from qserve.engines.transformers.worker.decoding import check, choose, stages
from qserve.engines.transformers.worker.decoding.body import DenseSteps
from qserve.engines.transformers.worker.decoding.choose import Layers, choose_layers, take_on_cards
from qserve.engines.transformers.worker.decoding.operations import ON_CARDS, PLAIN
from tests.tiny.engine.families import build
from tests.tiny.engine.loading import running as engine_running
from tests.tiny.engine.paged_reference import read_in_place
from tests.tiny.engine.running import CPU, generated, prompts, running, sequence, tokens_of

HEADS = Heads(4, 2, 64, torch.bfloat16)
MESSAGE = "'dtype' object has no attribute 'type'"


class CompilationError(Exception):
    """As Triton's."""


def does_not_compile(*_: Any) -> Any:
    raise CompilationError(f'at 12:4:\n    if head < heads:\n    ^\nAttributeError("{MESSAGE}")')


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    before = dict(ON_CARDS)
    yield
    ON_CARDS.update(before)


def take(tried: Callable[[], Any]) -> tuple[Refusal, ...]:
    """Of kernels that `tried` brings."""
    with mock.patch.object(check, "triton_kernels", tried):
        return take_on_cards(CPU, HEADS, 128)


def kernels_with(**broken: Callable[..., Any]) -> dict[str, Callable[..., Any]]:
    """Kernels that are right, but for those; none is the function of `PLAIN` itself."""
    return {**{name: (lambda *of, name=name: PLAIN[name](*of)) for name in PLAIN}, **broken}


@pytest.mark.parametrize("name", OPERATIONS)
def test_one_that_does_not_compile_falls_back_alone(
    name: str, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    tried = kernels_with(**{name: does_not_compile})
    refused = take(lambda: tried)
    assert refused == (Refusal(name, f"AttributeError: {MESSAGE}", COSTS[name]),)
    assert {**tried, name: PLAIN[name]} == ON_CARDS
    assert caplog.messages == [str(refused[0])] and "at 12:4:" in capfd.readouterr().err


def test_those_that_are_wrong_or_raise_are_all_named(caplog: pytest.LogCaptureFixture) -> None:
    def writes_nothing(*_: Any) -> None:
        pass

    tried = kernels_with(
        add_rms_norm=does_not_compile, silu_and_multiply=lambda gate, up: gate * up, rotate_and_store=writes_nothing
    )
    refused = {one.kernel: one.reason for one in take(lambda: tried)}
    assert refused.pop("add_rms_norm") == f"AttributeError: {MESSAGE}"
    assert refused == dict.fromkeys(("silu_and_multiply", "rotate_and_store"), "it is wrong on this card")
    assert len(caplog.messages) == 3


def test_a_choice_holds_until_the_next() -> None:
    take(lambda: kernels_with(add_rms_norm=does_not_compile))
    right = kernels_with()
    assert take(lambda: right) == () and right == ON_CARDS


def test_without_triton_all_fall_back() -> None:
    def find() -> Any:
        raise ModuleNotFoundError("No module named 'triton'")

    take(kernels_with)
    refused = take(find)
    assert [one.kernel for one in refused] == list(PLAIN) and ON_CARDS == PLAIN
    assert {one.reason for one in refused} == {"ModuleNotFoundError: No module named 'triton'"}


def test_what_a_card_takes_is_what_torch_calls_there() -> None:
    """Registered once under torch's name for cards; which function that is may change with each model."""
    called: list[str] = []
    ON_CARDS["silu_and_multiply"] = lambda *_: called.append("ours")
    from qserve.engines.transformers.worker.decoding.operations import _on_card

    _on_card("silu_and_multiply", 1, 2)
    assert called == ["ours"]
    for name in PLAIN:
        assert torch._C._dispatch_has_kernel_for_dispatch_key(f"qserve::{name}", "CUDA")


def as_on_a_card(model: Any) -> Any:
    """`model`, which says that it lies on a card."""
    return SimpleNamespace(
        device=SimpleNamespace(type="cuda"),
        config=model.config,
        dtype=model.dtype,
        get_decoder=model.get_decoder,
        parameters=model.parameters,
        buffers=model.buffers,
        modules=model.modules,
    )


def test_dense_layers_stay_captured_where_one_kernel_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The card refuses every one of Triton's here: there is none."""
    model = as_on_a_card(build("qwen3"))
    one = refusal("rotate_and_store", "no")
    monkeypatch.setattr(choose, "take_on_cards", lambda *_: (one,))
    chosen = choose_layers(model)
    assert chosen.dense is not None and chosen.capture is not None
    assert chosen.refused == (one,) and not chosen.why_not_captured
    monkeypatch.setattr(choose, "can_be_captured", lambda _: False)
    assert choose_layers(model).capture is None and choose_layers(model).why_not_captured


async def test_refused_operations_and_attention_reach_the_code_path(monkeypatch: pytest.MonkeyPatch) -> None:
    model, reference = build("qwen3"), build("qwen3")
    of_attention, of_layers = refusal(PAGED_ATTENTION, "none"), refusal("add_rms_norm", "no")
    chosen = ChosenKernel(GATHERED, gathered, PAGE_TOKENS, {}, (of_attention,))
    monkeypatch.setattr(paged, "choose_kernel", lambda *_: chosen)
    monkeypatch.setattr(paged, "compile_steps", lambda model, cache: None)
    monkeypatch.setattr(paged, "decodes_in_runs", lambda *_: True)
    monkeypatch.setattr(stages, "choose_layers", lambda model: Layers(DenseSteps.of(model), None, (of_layers,), "no"))
    prompt = prompts(1, 20)[0]
    async with running(PagedBatcher, model) as batcher:
        assert await tokens_of(batcher, sequence("one", prompt, 6)) == generated(reference, prompt, 6)
        path = code_path(model, batcher)
    assert path.refused == (of_attention, of_layers) and not path.is_as_intended and path.path == "dense layers"


def offer(monkeypatch: pytest.MonkeyPatch, **offered: Callable[[], Any]) -> None:
    """To a CPU, by name."""
    monkeypatch.setattr(kernels, "kernel_candidates", lambda *_: Candidates(tuple(offered), {}))
    monkeypatch.setattr(sources, "found_in", lambda *_: offered)


def test_attention_is_refused_where_all_that_were_tried_failed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def raises() -> Any:
        raise TypeError("varlen_attn() got an unexpected keyword argument 'block_table'")
        yield

    def wrong() -> Any:
        yield lambda query, *_: torch.zeros_like(query)

    offer(monkeypatch, torch_varlen=raises, flash=wrong)
    (refused,) = choose_kernel(CPU, HEADS).refused
    assert refused.kernel == PAGED_ATTENTION and refused.cost == COSTS[PAGED_ATTENTION]
    assert refused.reason == (
        "torch_varlen: TypeError: varlen_attn() got an unexpected keyword argument 'block_table'; "
        "flash: it is wrong on this card"
    )
    assert str(refused) in caplog.messages
    found = choose_kernel(CPU, HEADS)
    assert (found.name, set(found.passed_over)) == (GATHERED, {"torch_varlen", "flash"})

    def right() -> Any:
        yield read_in_place

    offer(monkeypatch, torch_varlen=raises, flash=right)
    assert choose_kernel(CPU, HEADS).refused == ()  # another one took its place
    offer(monkeypatch)
    assert choose_kernel(CPU, HEADS).refused == ()  # none is for this card


async def test_memory_tells_and_a_capture_fails_before_the_first_request(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(forward: Callable[[], Any]) -> Any:
        raise RuntimeError("operation not permitted when stream is capturing")

    chosen = ChosenKernel("some", read_in_place, PAGE_TOKENS, {})
    monkeypatch.setattr(paged, "choose_kernel", lambda *_: chosen)
    monkeypatch.setattr(paged, "compile_steps", lambda model, cache: None)
    monkeypatch.setattr(paged, "decodes_in_runs", lambda *_: True)
    monkeypatch.setattr(stages, "choose_layers", lambda model: Layers(DenseSteps.of(model), refuses))
    made = paged.PagedBatcher.__init__

    def with_graphs(self: Any, model: Any, loop: Any, limits: Any) -> None:
        made(self, model, loop, replace(limits, captures=True))  # a plan for a CPU counts none

    monkeypatch.setattr(paged.PagedBatcher, "__init__", with_graphs)
    async with engine_running("demo", "bf16") as engine:
        told = measured_memory(engine)["kernels"]
        assert engine.num_generated_tokens == 0
    assert told["batcher"] == "PagedBatcher" and told["path"] == "dense layers"
    (refused,) = told["refused"]
    assert refused["kernel"] == CAPTURE and "stream is capturing" in refused["reason"] and refused["cost"]


def test_a_release_that_reads_no_pages_is_no_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch 2.11's attention has no tables of pages on any card: as a package that is not installed."""

    def varlen_attn(query: Any, key: Any, value: Any, cu_seq_q: Any, cu_seq_k: Any) -> None: ...

    monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", varlen_attn)
    offer(monkeypatch, torch_varlen=sources._torch_varlen)
    found = kernels.choose_kernel(CPU, Heads(4, 2, 32, torch.float32))
    assert (found.name, found.refused) == (GATHERED, ())
    assert "does not read page tables; torch 2.12 does" in found.passed_over["torch_varlen"]


def test_the_trial_of_doctor_names_each_kernel() -> None:
    """A CPU refuses those that are for cards alone, each by its own error; draws by top-p are its own."""
    pytest.importorskip("triton")
    pytest.importorskip("bitsandbytes")
    found = kernel_trial.try_kernels(CPU, HEADS, 128)
    of_products = ("int8 product", "4-bit product", "fp8 experts")
    assert found["tried"] == [*OPERATIONS, CAPTURE, PAGED_ATTENTION, TOP_P_DRAW, *of_products]
    assert {one["kernel"] for one in found["refused"]} == set(found["tried"]) - {PAGED_ATTENTION, TOP_P_DRAW}
    assert all(one["reason"] and "\n" not in one["reason"] for one in found["refused"])
