"""A KV pool takes memory as it is written, not when it is made."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from qserve.engines.transformers.worker.batching.lazy_pools import LazyPools, lazy_zeros
from qserve.engines.transformers.worker.batching.paged import PagedBatcher
from qserve.engines.transformers.worker.batching.rows.batcher import RowBatcher
from qserve.model.resident import resident_bytes_of
from qserve.units import MIB
from tests.tiny.engine.families import build
from tests.tiny.engine.running import generated, prompts, running, sequence, tokens_of


def test_only_pages_that_were_written_are_resident() -> None:
    pool = lazy_zeros((64, MIB), torch.uint8)
    assert resident_bytes_of([pool]) == 0
    pool[3] = 7
    assert MIB <= resident_bytes_of([pool]) < 2 * MIB
    assert int(pool[2:5].sum()) == 7 * MIB  # zeros beside it
    assert lazy_zeros((3, 5), torch.bfloat16).tolist() == [[0.0] * 5] * 3


def test_what_a_library_makes_meanwhile_is_untouched() -> None:
    with LazyPools():
        pool = torch.zeros(64 * MIB, dtype=torch.uint8, device=torch.device("cpu"))
        assert torch.zeros(2, 3).tolist() == [[0.0] * 3] * 2
        assert torch.zeros(4, dtype=torch.int32, device="meta").device.type == "meta"
    assert pool.shape == (64 * MIB,)
    assert resident_bytes_of([pool]) == 0


def test_a_pool_beyond_all_memory_is_refused() -> None:
    with pytest.raises(MemoryError, match="you tried to allocate"):
        lazy_zeros((1 << 62,), torch.uint8)


@pytest.mark.parametrize("kind", [PagedBatcher, RowBatcher])
async def test_a_started_batcher_holds_little_of_its_pool(kind: type[Any]) -> None:
    model, prompt = build("qwen3"), prompts(1, 40)[0]
    expected = generated(model, prompt, 8)
    async with running(kind, model, kv_cache_tokens=200_000) as batcher:
        assert batcher.kv_cache_bytes > 64 * MIB
        assert await tokens_of(batcher, sequence("one", prompt, 8)) == expected
        assert 0 < resident_bytes_of(batcher.cache_tensors()) < batcher.kv_cache_bytes / 4
