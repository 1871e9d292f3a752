"""TRL 1.16 never holds all logits: what its tiles take, on a card and on a CPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from qserve.core.hardware import parse_gpu
from qserve.core.model_spec import ModelSpec
from qserve.planner.training import TrainingRequest, plan_training
from qserve.units import GIB, MIB


def logits(spec: ModelSpec, request: TrainingRequest) -> int:
    (card,) = plan_training(spec, parse_gpu("b200"), request).cards
    return next((t.num_bytes for t in (*card.terms, *card.other_terms) if t.name == "logits"), 0)


def test_a_tile_stays_as_the_length_grows(spec_of: Callable[[str], ModelSpec]) -> None:
    spec = spec_of("Qwen/Qwen2-7B")
    request = TrainingRequest("lora", max_length=4096, gradient_checkpointing=False, tiled_loss=True)
    short, long = logits(spec, request), logits(spec, replace(request, max_length=16384))
    hidden = 4 * spec.hidden_size
    assert short == 256 * MIB + 4096 * hidden  # 4096 × 32768 in 16 bit, and fp32 gradients of the hidden states
    assert long - short == 12288 * hidden
    whole = logits(spec, replace(request, tiled_loss=False))
    assert whole > 20 * short


def test_a_trained_lm_head_has_an_fp32_gradient(spec_of: Callable[[str], ModelSpec]) -> None:
    spec = spec_of("Qwen/Qwen2-7B")
    request = TrainingRequest("sft", gradient_checkpointing=False, tiled_loss=True)
    adapters = replace(request, method="lora")
    assert (logits(spec, request) - logits(spec, adapters)) / GIB == pytest.approx(4 * 152064 * 3584 / GIB, rel=1e-6)
