"""The published cases: what did not fit must not fit, what ran must fit, and sizes must come out as claimed.

A: Qwen2.5-3B reward model with accelerate on four cards. B: a 7B fine-tune. C: GRPO of Qwen2-7B in ms-swift with vLLM
on 4 × RTX 3090, then on A10 cards. D: PPO of Qwen2.5-1.5B with four models and vLLM on 4 × A100 80 GB. E: Qwen 32B.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from qserve.core.hardware import parse_gpu
from qserve.core.model_spec import ModelSpec
from qserve.planner.training import (
    TrainingJob,
    TrainingPlan,
    TrainingRequest,
    VllmBeside,
    plan_training,
    training_suggestions,
)
from qserve.units import GIB

SpecOf = Callable[[str], ModelSpec]


def _terms(plan: TrainingPlan) -> dict[str, float]:
    return {term.name: term.num_bytes / GIB for term in plan.cards[0].terms}


# Case A


def test_a_full_states_are_16_bytes_a_parameter(spec_of: SpecOf) -> None:
    plan = plan_training(spec_of("Qwen/Qwen2.5-3B"), parse_gpu("h100:1"), TrainingRequest("reward", max_length=4096))
    terms = _terms(plan)
    states = terms["weights (reward)"] + terms["gradients (reward)"] + terms["optimizer (reward)"]
    assert states == pytest.approx(46, abs=0.2)
    assert plan.dominant == "optimizer (reward)"


def test_a_one_24_gb_card_cannot_and_zero_3_over_four_can(spec_of: SpecOf) -> None:
    spec = spec_of("Qwen/Qwen2.5-3B")
    request = TrainingRequest("reward", max_length=4096, gradient_accumulation_steps=8)
    assert not plan_training(spec, parse_gpu("rtx-3090"), request).fits
    assert not plan_training(spec, parse_gpu("rtx-3090:4"), request).fits  # four copies are no help
    assert plan_training(spec, parse_gpu("rtx-3090:4"), replace(request, zero_stage=3)).fits


def test_a_a_frozen_base_needs_2_bytes_a_parameter(spec_of: SpecOf) -> None:
    request = TrainingRequest("reward", max_length=4096, freeze_base=True)
    plan = plan_training(spec_of("Qwen/Qwen2.5-3B"), parse_gpu("rtx-3060"), request)
    assert plan.trainable == 2048  # the head: hidden size × 1, not 1 % of the model
    assert _terms(plan)["weights (reward)"] == pytest.approx(5.75, abs=0.05)
    assert plan.fits


def test_a_halving_the_length_halves_activations_only(spec_of: SpecOf) -> None:
    spec, devices = spec_of("Qwen/Qwen2.5-3B"), parse_gpu("rtx-3090:4")
    long, short = (
        plan_training(spec, devices, TrainingRequest("reward", max_length=length, zero_stage=3)).cards[0]
        for length in (8192, 4096)
    )
    per_token = [
        sum(
            term.num_bytes
            for term in (*card.terms, *card.other_terms)
            if term.name in ("activations", "recomputed layer")
        )
        for card in (long, short)
    ]
    assert per_token[0] == pytest.approx(2 * per_token[1], rel=1e-6)
    assert short.used_bytes > 0.75 * long.used_bytes  # of the whole it saves far less than half


# Case B


def test_b_adam_of_7b_is_28_gb_in_16_bit_and_56_in_fp32(spec_of: SpecOf) -> None:
    spec, devices = spec_of("Qwen/Qwen2-7B"), parse_gpu("b200")
    pure = _terms(plan_training(spec, devices, TrainingRequest("sft", precision="pure")))
    fp32 = _terms(plan_training(spec, devices, TrainingRequest("sft", precision="amp")))
    assert pure["optimizer (policy)"] == pytest.approx(4 * 7.616e9 / GIB, rel=0.01)
    assert fp32["optimizer (policy)"] == pytest.approx(8 * 7.616e9 / GIB, rel=0.01)


def test_b_qlora_of_70b_fits_one_48_gb_card(spec_of: SpecOf) -> None:
    request = TrainingRequest("qlora", max_length=512, lora_rank=16)
    plan = plan_training(spec_of("Qwen/Qwen2-72B"), parse_gpu("rtx-a6000"), request)
    assert plan.fits
    assert not plan_training(spec_of("Qwen/Qwen2-72B"), parse_gpu("rtx-3090"), request).fits


# Case C


def _case_c(spec: ModelSpec, gpu: str, **fields: object) -> TrainingJob:
    request = TrainingRequest("grpo", max_length=1024, gradient_accumulation_steps=8, **fields)  # type: ignore[arg-type]
    return TrainingJob("Qwen/Qwen2-7B", spec, gpu, parse_gpu(gpu), request)


@pytest.mark.parametrize("micro_batch", [1, 2])
def test_c_first_try_does_not_fit_at_any_batch(spec_of: SpecOf, micro_batch: int) -> None:
    vllm = VllmBeside("colocated", gpu_memory_utilization=0.8)
    asked = _case_c(
        spec_of("Qwen/Qwen2-7B"), "rtx-3090:4", micro_batch=micro_batch, zero_stage=2, lora_rank=8, vllm=vllm
    )
    plan = asked.plan()
    assert not plan.fits
    assert plan.why_not is not None
    assert "no micro-batch and no length can help" in plan.why_not
    terms = _terms(plan)
    assert terms["weights (policy)"] == pytest.approx(14.2, abs=0.1)  # ZeRO-2 leaves them whole
    assert terms["vllm"] == pytest.approx(0.8 * 23.56, abs=0.01)


def test_c_second_try_fits_only_with_a_card_for_the_engine(spec_of: SpecOf) -> None:
    """Three trainer processes at 0.9: on the same cards it cannot have run, beside a fourth it can."""
    fields = {"micro_batch": 7, "zero_stage": 3, "lora_rank": 16}
    spec = spec_of("Qwen/Qwen2-7B")
    colocated = _case_c(spec, "a10:3", vllm=VllmBeside("colocated", 0.9), **fields).plan()
    separate = _case_c(spec, "a10:4", vllm=VllmBeside("separate", 0.9), **fields).plan()
    assert not colocated.fits
    assert separate.fits
    assert [card.role for card in separate.cards] == ["trainer"] * 3 + ["engine"]
    assert _terms(separate)["weights (policy)"] == pytest.approx(14.2 / 3, abs=0.1)


def test_c_what_is_offered_is_what_helped(spec_of: SpecOf) -> None:
    vllm = VllmBeside("colocated", gpu_memory_utilization=0.8)
    asked = _case_c(spec_of("Qwen/Qwen2-7B"), "rtx-3090:4", micro_batch=2, zero_stage=2, lora_rank=8, vllm=vllm)
    offered = training_suggestions(asked)
    assert len(offered) >= 3
    assert offered[0].change == "a card of its own for the engine"
    assert "--vllm separate" in offered[0].command


@pytest.mark.parametrize("rank", [8, 16, 64])
def test_c_a_larger_rank_never_saves(spec_of: SpecOf, rank: int) -> None:
    spec, devices = spec_of("Qwen/Qwen2-7B"), parse_gpu("a10:4")
    sizes = [
        plan_training(spec, devices, TrainingRequest("lora", lora_rank=r)).cards[0].used_bytes for r in (rank, 2 * rank)
    ]
    assert sizes[1] > sizes[0]


# Case D


@pytest.mark.parametrize(("fraction", "fits"), [(0.9, False), (0.5, True)])
def test_d_four_models_beside_an_engine(spec_of: SpecOf, fraction: float, fits: bool) -> None:
    request = TrainingRequest(
        "ppo", micro_batch=2, max_length=1024, zero_stage=3, vllm=VllmBeside("colocated", fraction)
    )
    plan = plan_training(spec_of("Qwen/Qwen2.5-1.5B"), parse_gpu("a100-80gb:4"), request)
    assert plan.fits is fits
    terms = _terms(plan)
    assert {f"weights ({role})" for role in ("policy", "critic", "reference", "reward")} <= set(terms)
    assert plan.cards[0].total_bytes / GIB - terms["vllm"] == pytest.approx((1 - fraction) * 79.25, abs=0.01)


# Case E


@pytest.mark.parametrize(
    ("precision", "weights", "optimizer"), [("fp32", 4, 8), ("pure", 2, 4), ("mixed", 2, 12), ("amp", 6, 8)]
)
def test_e_bytes_a_parameter_of_32b(spec_of: SpecOf, precision: str, weights: int, optimizer: int) -> None:
    spec = spec_of("Qwen/Qwen3-32B")
    plan = plan_training(spec, parse_gpu("b200"), TrainingRequest("sft", precision=precision))
    terms = _terms(plan)
    assert terms["weights (policy)"] == pytest.approx(weights * plan.parameters / GIB)
    assert terms["optimizer (policy)"] == pytest.approx(optimizer * plan.parameters / GIB)
    assert not plan.fits
    assert training_suggestions(TrainingJob("Qwen/Qwen3-32B", spec, "b200", parse_gpu("b200"), plan.request))
