"""Models without values on a card that is not there (`fake_card`), and a batcher that takes their steps one by one."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from transformers import (
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

from qserve.engines.transformers.worker.attention.kernels import GATHERED, ChosenKernel
from qserve.engines.transformers.worker.attention.pages import PagedKernel, PageStep, gathered
from qserve.engines.transformers.worker.attention.triton_decode import PagedDecode
from qserve.engines.transformers.worker.batching import paged
from qserve.engines.transformers.worker.batching.batcher import BatchLimits, Sequence
from qserve.engines.transformers.worker.batching.paged import PagedBatcher
from qserve.engines.transformers.worker.batching.paged_faults import FaultTolerantStages
from qserve.engines.transformers.worker.decoding import stages
from qserve.engines.transformers.worker.decoding.body import DenseSteps
from qserve.engines.transformers.worker.decoding.choose import Layers
from qserve.engines.transformers.worker.decoding.forward import capture_on_card
from qserve.model.cuda.linear import CardLinear
from qserve.model.cuda.weights import FourBitWeight, Int8Weight, Weight
from tests.tiny.engine.fake_card import FakeCard

__all__ = ["VOCABULARY", "Steps", "build", "in_place", "stepping", "weight"]

VOCABULARY = 1000
_BODY = {
    "vocab_size": VOCABULARY,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
_EXPERTS = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 128}
_BLOCK = 64


def build(family: str, held: str = "bf16") -> Any:
    """Two layers on the card, in bf16 or with linear layers as bitsandbytes holds them."""
    kinds: dict[str, tuple[Any, Any]] = {
        "qwen3": (Qwen3ForCausalLM, Qwen3Config(**_BODY, head_dim=128)),
        "qwen2": (Qwen2ForCausalLM, Qwen2Config(**_BODY)),  # heads of 64, biases, no norms of heads
        "qwen3-moe": (Qwen3MoeForCausalLM, Qwen3MoeConfig(**_BODY, **_EXPERTS, head_dim=64)),
    }
    kind, config = kinds[family]
    with torch.device("cuda"):
        model = kind._from_config(config, dtype=torch.bfloat16).eval()
        if held != "bf16":
            _hold(model.get_decoder(), held, (torch.empty(16), torch.empty(256)))
    return model


def _hold(model: torch.nn.Module, held: str, tables: tuple[torch.Tensor, torch.Tensor]) -> None:
    for name, child in list(model.named_children()):
        if isinstance(child, torch.nn.Linear):
            setattr(model, name, CardLinear(weight(held, *child.weight.shape, tables), child.bias))
        else:
            _hold(child, held, tables)


def weight(held: str, outputs: int, inputs: int, tables: tuple[torch.Tensor, torch.Tensor] | None = None) -> Weight:
    """On the current device. `tables`: what codes and those of nested scales stand for; no card can compare them."""
    if held == "int8":
        return Int8Weight(torch.empty(outputs, inputs, dtype=torch.int8), torch.empty(outputs))
    blocks = outputs * inputs // _BLOCK
    code, nested_code = tables or (torch.empty(16), torch.empty(256))
    nested = nested_code, torch.empty(-(-blocks // 256)), torch.empty(1)
    packed, scales = (torch.empty(size, dtype=torch.uint8) for size in (outputs * inputs // 2, blocks))
    return FourBitWeight(held, packed, code, scales, nested, _BLOCK, inputs)


@torch.library.custom_op("qserve_fake::read_pages", mutates_args=())
def _read_pages(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, bounds: torch.Tensor, table: torch.Tensor
) -> torch.Tensor:
    raise AssertionError("there are no values")


@_read_pages.register_fake
def _(query: torch.Tensor, keys: Any, values: Any, bounds: Any, table: Any) -> torch.Tensor:
    return torch.empty_like(query)


def in_place(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, step: PageStep, scaling: float
) -> torch.Tensor:
    """As flash-attn's kernels, which read pages, and the bounds of keys, where they are."""
    return _read_pages(query, keys, values, step.key_bounds, step.block_table)


class Steps:
    """Of a batcher whose thread does not run."""

    def __init__(self, card: FakeCard, batcher: Any, model: Any) -> None:
        self.card, self.batcher, self._model = card, batcher, model
        self.processor = batcher._library.processor

    @property
    def is_in_run(self) -> bool:
        """Whether the last step was one of a run of decoding steps."""
        return self.batcher._decoding._run is not None

    @property
    def forwards(self) -> Any:
        """Of decoding steps."""
        return self.batcher._decoding._forwards

    def submit(self, *sequences: Sequence) -> None:
        """They are in the next step."""
        self.batcher._inbox.submitted.extend(sequences)

    def take(self) -> list[str]:
        """One step; what it waited for."""
        self.card.waits.clear()
        if self.processor.prepare_next_batch():
            self.processor._generation_step(self._model)
            self.processor.update_batch()
        return list(self.card.waits)


@contextmanager
def stepping(card: FakeCard, model: Any, kernel: PagedKernel) -> Iterator[Steps]:
    """A batcher over `model` as it is where `kernel` was found to be right, and steps can be captured."""
    name = GATHERED if kernel is gathered else "some"
    chosen = ChosenKernel(name, kernel, 256, {}, reads_prompts=not isinstance(kernel, PagedDecode))

    def fails(stages: Any, error: Exception, involved: Any) -> None:
        raise error

    with (
        mock.patch.object(paged, "choose_kernel", lambda *_: chosen),
        mock.patch.object(stages, "choose_layers", lambda model: Layers(DenseSteps.of(model), capture_on_card)),
        mock.patch.object(FaultTolerantStages, "_recover", fails),
    ):
        loop = asyncio.new_event_loop()
        try:
            batcher = PagedBatcher(model, loop, BatchLimits(16384, 32, 1024))
            batcher._library.manager.start = lambda: None
            batcher.start(lambda error: None)
            yield Steps(card, batcher, model)
        finally:
            loop.close()
