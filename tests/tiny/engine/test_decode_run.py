"""Runs of decoding steps as cards take them, on a CPU: the tokens of plain transformers, whatever comes between."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from qserve.engines.transformers.kernels.kv_pages import PAGE_TOKENS
from qserve.engines.transformers.worker.attention import pages
from qserve.engines.transformers.worker.attention.kernels import ChosenKernel
from qserve.engines.transformers.worker.attention.pages import PageStep, gathered
from qserve.engines.transformers.worker.batching import paged
from qserve.engines.transformers.worker.batching.batcher import Sequence
from qserve.engines.transformers.worker.batching.paged import PagedBatcher
from qserve.engines.transformers.worker.decoding.forward import Forwards
from qserve.engines.transformers.worker.decoding.run import DecodeRun
from qserve.model.failures import SequenceFailed
from tests.tiny.engine.families import build
from tests.tiny.engine.paged_reference import read_in_place
from tests.tiny.engine.running import choices_of, come_and_go, generated, idle, prompts, running, sequence, tokens_of

LIMITS: dict[str, dict[str, int]] = {
    "roomy": {},
    "chunked": {"max_num_batched_tokens": 48},
    "tight pool": {"kv_cache_tokens": 320},
    "two at once": {"max_num_seqs": 2},
}


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The rows of each step that a run has taken."""
    monkeypatch.setattr(paged, "decodes_in_runs", lambda model, cache: True)
    taken: list[int] = []
    step = DecodeRun.step

    def noted(run: DecodeRun) -> None:
        taken.append(len(run._rows))
        step(run)

    monkeypatch.setattr(DecodeRun, "step", noted)
    return taken


@pytest.mark.parametrize(
    ("family", "name"), [*(("qwen3", name) for name in LIMITS), ("qwen3-moe", "roomy")], ids=lambda part: part
)
async def test_a_run_says_what_generate_says(family: str, name: str, steps: list[int]) -> None:
    """Answers of different lengths, so that runs end and begin; pages fill up in the middle of them."""
    limits, model, reference = LIMITS[name], build(family), build(family)
    asked = prompts(8, 20)
    async with running(PagedBatcher, model, **limits) as batcher:
        ones = [sequence(f"r{i}", prompt, 12 + 7 * i) for i, prompt in enumerate(asked)]
        said = await asyncio.gather(*(tokens_of(batcher, one) for one in ones))
        await idle(batcher)
        assert not batcher._stages._known
    assert said == [generated(reference, prompt, 12 + 7 * i) for i, prompt in enumerate(asked)]
    assert len(steps) > 20
    assert max(steps) >= min(2, limits.get("max_num_seqs", 8))


async def test_those_who_come_and_go_in_the_middle_change_nothing(steps: list[int]) -> None:
    model, reference = build("qwen3"), build("qwen3")
    asked = prompts(6, 25)
    async with running(PagedBatcher, model) as batcher:
        said = await come_and_go(batcher, asked, 60, steps)
        await idle(batcher)
    assert said == [generated(reference, prompt, 60) for prompt in asked]


@pytest.mark.parametrize("limits", [LIMITS["chunked"], LIMITS["tight pool"]], ids=["chunked", "tight pool"])
async def test_with_a_kernel_that_reads_pages_keys_are_never_gathered(
    limits: dict[str, int], steps: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither in runs nor in steps that read prompts, nor are lists of their positions made."""
    monkeypatch.setattr(paged, "choose_kernel", lambda *_: ChosenKernel("reference", read_in_place, PAGE_TOKENS, {}))
    model, reference = build("qwen3"), build("qwen3")
    prefix = prompts(1, 70)[0]
    asked = [[*prefix, *prompt] for prompt in prompts(5, 5)]
    async with running(PagedBatcher, model, **limits) as batcher:
        cache = batcher._library.processor.cache
        monkeypatch.setattr(cache, "update", lambda *_, **__: pytest.fail("keys were gathered"))
        monkeypatch.setattr(
            cache.cache_allocators["full_attention"],
            "get_read_indices",
            lambda *_: pytest.fail("positions were listed"),
        )
        said = await asyncio.gather(*(tokens_of(batcher, sequence(f"r{i}", p, 20)) for i, p in enumerate(asked)))
    assert said == [generated(reference, prompt, 20) for prompt in asked]


async def test_a_stop_token_is_found_a_step_late_and_what_follows_is_dropped(steps: list[int]) -> None:
    model, reference = build("qwen3"), build("qwen3")
    asked = prompts(4, 25)
    whole = [generated(reference, prompt, 40) for prompt in asked]
    ends = [frozenset({tokens[9 + 5 * i]}) for i, tokens in enumerate(whole)]
    async with running(PagedBatcher, model) as batcher:
        ones = [sequence(f"r{i}", p, 40, stop_token_ids=e) for i, (p, e) in enumerate(zip(asked, ends, strict=True))]
        said = await asyncio.gather(*(tokens_of(batcher, one) for one in ones))
        assert all(one.outbox.empty() for one in ones)
    meant = [
        tokens[: next(i for i, t in enumerate(tokens) if t in e) + 1] for tokens, e in zip(whole, ends, strict=True)
    ]
    assert said == meant


async def test_what_a_run_has_written_is_shared_with_later_prompts(steps: list[int]) -> None:
    model, reference = build("qwen3"), build("qwen3")
    (prompt,) = prompts(1, 40)
    async with running(PagedBatcher, model) as batcher:
        first = await tokens_of(batcher, sequence("first", prompt, 80))
        again = [*prompt, *first, 5]
        second = await tokens_of(batcher, sequence("second", again, 10))
        assert batcher.load().num_shared_tokens >= 96
    assert first == generated(reference, prompt, 80)
    assert second == generated(reference, again, 10)


async def test_all_kinds_of_draws_are_the_same_alone_and_in_company(steps: list[int]) -> None:
    model = build("qwen3")
    asked = prompts(8, 20)
    kinds: list[dict[str, Any]] = [
        {"temperature": 0.0},
        {"temperature": 1.0, "top_p": 0.9},
        {"temperature": 0.7, "top_k": 20, "top_p": 0.8},
        {"temperature": 1.0, "repetition_penalty": 1.2},
        {"temperature": 0.9, "frequency_penalty": 0.5, "min_p": 0.02},
        {"temperature": 0.0, "num_logprobs": 3},
        {"temperature": 1.0, "logit_bias": {5: 4.0}, "num_logprobs": 0},
        {"temperature": 1.2},
    ]

    def ones() -> list[Sequence]:
        return [sequence(f"r{i}", p, 25, seed=i, **kind) for i, (p, kind) in enumerate(zip(asked, kinds, strict=True))]

    async with running(PagedBatcher, model) as batcher:
        together = await asyncio.gather(*(choices_of(batcher, one) for one in reversed(ones())))
        alone = [await choices_of(batcher, one) for one in ones()]
    assert [[c.token_id for c in one] for one in reversed(together)] == [[c.token_id for c in one] for one in alone]
    assert max(steps) == len(asked)


async def test_a_step_of_a_run_that_fails_is_taken_again_by_the_library(steps: list[int]) -> None:
    model, reference = build("qwen3"), build("qwen3")
    asked = prompts(5, 25)
    left = [1]

    def fail(*_: Any) -> None:
        if len(steps) > 5 and left:
            left.pop()
            raise RuntimeError("injected")

    model.model.layers[-1].register_forward_pre_hook(fail)
    async with running(PagedBatcher, model) as batcher:
        said = await asyncio.gather(*(tokens_of(batcher, sequence(f"r{i}", p, 30)) for i, p in enumerate(asked)))
        await idle(batcher)
    assert not left
    assert said == [generated(reference, prompt, 30) for prompt in asked]


async def test_a_sequence_that_is_no_number_fails_alone(steps: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    model, reference = build("qwen3"), build("qwen3")
    asked = prompts(3, 25)
    forward = Forwards.__call__

    def broken(forwards: Forwards, buffers: Any) -> torch.Tensor:
        logits = forward(forwards, buffers)
        if len(steps) > 6 and len(logits) == 3:
            logits[1] = float("nan")
        return logits

    monkeypatch.setattr(Forwards, "__call__", broken)
    async with running(PagedBatcher, model) as batcher:
        said = await asyncio.gather(
            *(tokens_of(batcher, sequence(f"r{i}", p, 30)) for i, p in enumerate(asked)), return_exceptions=True
        )
        await idle(batcher)
    assert isinstance(said[1], SequenceFailed)
    assert [said[0], said[2]] == [generated(reference, asked[i], 30) for i in (0, 2)]


def test_pages_are_copied_by_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """One long sequence among many would ask for memory that no plan has: each is padded to it."""
    torch.manual_seed(0)
    lengths = torch.tensor([90, 3, 40, 7, 1], dtype=torch.int32)
    query, keys, values = torch.randn(5, 4, 16), torch.randn(30, 8, 2, 16), torch.randn(30, 8, 2, 16)
    table = torch.randperm(30)[: 5 * 6].view(5, 6).int().repeat(1, 2)
    bounds = torch.arange(6, dtype=torch.int32)
    step = PageStep(lengths.long(), table, lengths, bounds, 1, 90, gathered)
    whole = gathered(query, keys, values, step, 0.25)
    assert torch.allclose(whole, read_in_place(query, keys, values, step, 0.25), atol=1e-5)
    copied: list[int] = []
    attend = pages.scaled_dot_product_attention

    def noted(query: Any, key: Any, *of: Any, **named: Any) -> Any:
        copied.append(2 * key.nbytes)
        return attend(query, key, *of, **named)

    monkeypatch.setattr(pages, "scaled_dot_product_attention", noted)
    for most in (1, 60_000, 1 << 20):
        monkeypatch.setattr(pages, "_COPIED_BYTES", most)
        copied.clear()
        assert torch.equal(gathered(query, keys, values, step, 0.25), whole)
        assert max(copied) <= max(most, 2 * 12 * keys[0].nbytes)
    assert len(copied) == 1
