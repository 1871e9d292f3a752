"""What a card would meet in the library's continuous batching, brought about on a CPU."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch
from transformers.generation.continuous_batching import cache, input_outputs

from qserve.engines.transformers.kernels.kv_pages import PAGE_TOKENS
from qserve.engines.transformers.worker.attention.kernels import ChosenKernel
from qserve.engines.transformers.worker.attention.pages import gathered
from qserve.engines.transformers.worker.batching import paged
from qserve.engines.transformers.worker.batching.batcher import BatchLimits
from qserve.engines.transformers.worker.batching.paged import PagedBatcher
from tests.tiny.engine.running import generated, prompts, sequence, tokens_of


async def test_a_pool_that_fits_is_not_refused(
    model: Any, batching: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Left to itself the library counts masks that nobody makes, and wants a tenth of the card beside the pool."""
    async with batching(kv_cache_tokens=4096) as batcher:
        free = batcher.kv_cache_bytes * 21 // 20
    monkeypatch.setattr(cache, "get_device_and_memory_breakdown", lambda: (torch.device("cpu"), free, 0, 0))
    prompt = prompts(1, 30)[0]
    async with batching(kv_cache_tokens=4096) as batcher:
        assert await tokens_of(batcher, sequence("one", prompt, 4)) == generated(model, prompt, 4)


async def test_a_step_runs_on_the_stream_on_which_its_inputs_are_copied(
    model: Any, batching: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = input_outputs.ContinuousBatchingIOs.__init__

    def with_a_stream(self: Any, *arguments: Any, **named: Any) -> None:
        made(self, *arguments, **named)
        self.compute_stream = "a stream that a CPU has not"

    monkeypatch.setattr(input_outputs.ContinuousBatchingIOs, "__init__", with_a_stream)
    prompt = prompts(1, 30)[0]
    async with batching() as batcher:
        assert await tokens_of(batcher, sequence("one", prompt, 4)) == generated(model, prompt, 4)


@pytest.mark.parametrize("page_size", [256, PAGE_TOKENS])
async def test_a_kernel_gets_pages_that_it_can_read(monkeypatch: pytest.MonkeyPatch, page_size: int) -> None:
    chosen = ChosenKernel("some", gathered, page_size, {})
    monkeypatch.setattr(paged, "choose_kernel", lambda device, heads: chosen)
    model = MagicMock()
    batcher = PagedBatcher(model, asyncio.get_running_loop(), BatchLimits(1000, 4, 64))
    config = model.init_continuous_batching.call_args.kwargs["continuous_batching_config"]
    assert config.page_size == page_size
    assert batcher.kv_cache_tokens == config.num_blocks * page_size <= 1000
    assert batcher.attention == "some"
