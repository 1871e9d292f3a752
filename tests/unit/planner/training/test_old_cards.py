"""Cards that the published wheels have no kernels for: a plan for training says what runs there, and what does not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from qserve.core.hardware import parse_gpu
from qserve.core.model_spec import ModelSpec
from qserve.hub.bundled import bundled_config
from qserve.planner.training import TrainingRequest, VllmBeside, plan_training

MODEL = "Qwen/Qwen2.5-0.5B"
BUILD = "torch's build for CUDA 12.6 (index cu126) supports it"
ENGINE = "--vllm does not start there"


def notes(capability: tuple[int, int] | None, **fields: Any) -> str:
    spec = ModelSpec.from_config(bundled_config(MODEL) or {}, MODEL)
    (card,) = parse_gpu("rtx-4090")
    device = replace(card, name="an old card", compute_capability=capability)
    return "\n".join(plan_training(spec, [device], TrainingRequest(max_length=512, **fields)).notes)


@pytest.mark.parametrize("capability", [(7, 2), (7, 0), (6, 1), (5, 2)])
def test_an_old_card_is_told_with_the_build_that_runs(capability: tuple[int, int]) -> None:
    shown = ".".join(map(str, capability))
    for method in ("sft", "lora", "dpo"):
        said = notes(capability, method=method)
        assert f"an old card has compute capability {shown}" in said and BUILD in said
    rollouts = VllmBeside("colocated", 0.3)
    assert ENGINE in notes(capability, method="grpo", vllm=rollouts) and ENGINE not in notes(capability, method="grpo")


@pytest.mark.parametrize("capability", [(7, 5), (8, 9), (9, 0), (12, 0), None])
def test_a_card_with_kernels_is_planned_as_before(capability: tuple[int, int] | None) -> None:
    for fields in ({"method": "sft"}, {"method": "qlora"}, {"method": "grpo", "vllm": VllmBeside("colocated", 0.3)}):
        assert "kernels" not in notes(capability, **fields)


@pytest.mark.parametrize(
    ("capability", "fields", "is_told"),
    [
        ((7, 0), {"method": "lora", "quant": "int8"}, True),
        ((7, 0), {"method": "qlora"}, False),
        ((5, 2), {"method": "qlora"}, True),
        ((5, 2), {"method": "dpo", "load_in_4bit": True, "lora_rank": 8}, True),
        ((5, 2), {"method": "lora"}, False),
    ],
)
def test_a_frozen_base_that_no_wheel_computes_is_named(
    capability: tuple[int, int], fields: dict[str, Any], is_told: bool
) -> None:
    assert ("bitsandbytes' wheels hold kernels for" in notes(capability, **fields)) is is_told


def test_a_card_that_no_wheel_of_torch_knows() -> None:
    said = notes((3, 7), method="sft")
    assert "no wheel of torch has kernels below 5.0" in said and BUILD not in said
