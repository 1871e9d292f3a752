"""A random Qwen3 of two layers, and a paged batcher over it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from bench.random_checkpoint import write_checkpoint
from qserve.demo import chat_model_path
from qserve.engines.transformers.worker.batching.paged import PagedBatcher
from tests.tiny.engine.fake_card import FakeCard, fake_card
from tests.tiny.engine.running import running


@pytest.fixture(scope="session", autouse=True)
def as_in_a_worker() -> None:
    """One thread: the models are so small that more would only wait for each other, and for whatever else runs here."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Random weights in float32."""
    return write_checkpoint(tmp_path_factory.mktemp("tiny"), "tiny", dtype="float32")


@pytest.fixture(scope="session")
def model(tiny: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(tiny, dtype=torch.float32).eval()


@pytest.fixture(scope="session")
def demo_tokenizer() -> Any:
    """A byte-level BPE with merges, Qwen's special tokens, and characters of several tokens."""
    return AutoTokenizer.from_pretrained(chat_model_path())


@pytest.fixture
def batching(tiny: Path) -> Callable[..., AbstractAsyncContextManager[PagedBatcher]]:
    """`async with batching(kv_cache_tokens=…) as batcher`: running, on a model of its own."""

    def run(**limits: int) -> AbstractAsyncContextManager[PagedBatcher]:
        model = AutoModelForCausalLM.from_pretrained(tiny, dtype=torch.float32).eval()
        return running(PagedBatcher, model, **limits)

    return run


@pytest.fixture
def card() -> Iterator[FakeCard]:
    """A card that is not there: what the test makes on it has no values."""
    with fake_card() as made, torch.no_grad():
        yield made
