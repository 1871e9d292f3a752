"""What must hold of any training plan: more of anything never needs less, and parts sum to the whole."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from qserve.core.hardware import parse_gpu
from qserve.core.model_spec import ModelSpec
from qserve.planner.training import TrainingJob, TrainingRequest, VllmBeside, plan_training, training_suggestions
from qserve.planner.training.training_constants import OPTIMIZERS, PRECISIONS

BASE = ModelSpec.from_config(
    {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "hidden_size": 4096,
        "num_hidden_layers": 36,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "intermediate_size": 12288,
        "vocab_size": 151936,
        "max_position_embeddings": 40960,
        "tie_word_embeddings": False,
    },
    "Qwen3-8B shape",
)


@st.composite
def requests(draw: st.DrawFn) -> TrainingRequest:
    method = draw(st.sampled_from(["sft", "lora", "qlora", "reward", "dpo", "ppo", "grpo"]))
    stage = draw(st.integers(0, 3))
    vllm = None
    if method in ("ppo", "grpo") and draw(st.booleans()):
        mode = draw(st.sampled_from(["colocated", "separate"]))
        vllm = VllmBeside(mode, draw(st.sampled_from([0.3, 0.5, 0.9])), sleep=draw(st.booleans()))
    return TrainingRequest(
        method=method,
        micro_batch=draw(st.integers(1, 16)),
        max_length=draw(st.integers(64, 8192)),
        mean_length=draw(st.sampled_from([None, 64, 4000])),
        gradient_checkpointing=draw(st.booleans()),
        freeze_base=method == "reward" and draw(st.booleans()),
        optimizer=draw(st.sampled_from(list(OPTIMIZERS))),
        precision=draw(st.sampled_from(list(PRECISIONS))),
        zero_stage=stage,
        offload_optimizer=draw(st.sampled_from(["none", "cpu"])) if stage else "none",
        offload_param=draw(st.sampled_from(["none", "cpu"])) if stage == 3 else "none",
        lora_rank=draw(st.sampled_from([0, 8, 64])),
        attention=draw(st.sampled_from(["sdpa", "eager"])),
        fused_loss=draw(st.booleans()),
        evaluation=draw(st.booleans()),
        vllm=vllm,
    )


def _need(spec: ModelSpec, request: TrainingRequest, cards: int = 4) -> int:
    return plan_training(spec, parse_gpu(f"memory=2000GiB,count={cards}"), request).cards[0].used_bytes


@given(requests(), st.integers(2, 8))
def test_more_tokens_need_no_less(request: TrainingRequest, factor: int) -> None:
    need = _need(BASE, request)
    assert _need(BASE, replace(request, micro_batch=request.micro_batch * factor)) >= need
    assert _need(BASE, replace(request, max_length=request.max_length * factor)) >= need


@given(requests(), st.integers(1, 40))
def test_more_parameters_need_no_less(request: TrainingRequest, layers: int) -> None:
    larger = replace(BASE, num_hidden_layers=36 + layers, layer_types=BASE.layer_types + ("full_attention",) * layers)
    assert _need(larger, request) >= _need(BASE, request)


@given(requests(), st.integers(2, 16))
def test_a_higher_zero_stage_needs_no_more(request: TrainingRequest, cards: int) -> None:
    request = replace(request, offload_param="none")
    vllm = request.vllm and replace(request.vllm, tensor_parallel_size=1)
    stages = [
        _need(BASE, replace(request, zero_stage=stage, offload_optimizer="none", vllm=vllm), cards + 1)
        for stage in (1, 2, 3)
    ]
    assert stages == sorted(stages, reverse=True)


@given(requests(), st.integers(2, 16))
def test_zero_of_all_weights_needs_no_more_than_none(request: TrainingRequest, cards: int) -> None:
    """Of adapters, or with an optimizer that has no states, it may: DeepSpeed's buffers are of fixed size."""
    request = replace(request, method="sft", lora_rank=0, freeze_base=False, offload_param="none", vllm=None)
    request = replace(request, offload_optimizer="none", precision="mixed", optimizer="adamw")
    assert _need(BASE, replace(request, zero_stage=1), cards) <= _need(BASE, replace(request, zero_stage=0), cards)


@given(requests())
def test_offload_checkpointing_and_adapters_need_no_more(request: TrainingRequest) -> None:
    need = _need(BASE, request)
    if request.zero_stage:
        assert _need(BASE, replace(request, offload_optimizer="cpu")) <= need
    assert _need(BASE, replace(request, gradient_checkpointing=True)) <= _need(
        BASE, replace(request, gradient_checkpointing=False)
    )
    plain = replace(request, gradient_checkpointing=True, optimizer="adamw", offload_optimizer="none")
    if request.tuning == "full":
        assert _need(BASE, replace(plain, lora_rank=8)) <= _need(BASE, plain)


@given(requests())
def test_parts_sum_to_the_whole(request: TrainingRequest) -> None:
    plan = plan_training(BASE, parse_gpu("a100-80gb:4"), request)
    for card in plan.cards:
        assert sum(term.num_bytes for term in card.terms) + card.free_bytes == card.total_bytes
        assert max(card.phases.values()) == card.phases[card.phase] == card.used_bytes
        assert all(term.low_bytes <= term.num_bytes <= term.high_bytes for term in card.terms)
        assert all(isinstance(term.num_bytes, int) for term in card.terms)
    assert plan.fits == (plan.why_not is None)
    if plan.fits:
        assert all(card.free_bytes >= 0 for card in plan.cards)


@given(requests(), st.integers(1, 100))
def test_what_fits_still_fits_with_more_memory(request: TrainingRequest, more: int) -> None:
    """A colocated engine claims a share, so the trainer gets more of a larger card as well."""
    plan = plan_training(BASE, parse_gpu("memory=80GiB,count=4"), request)
    if plan.fits:
        assert plan_training(BASE, parse_gpu(f"memory={80 + more}GiB,count=4"), request).fits


@settings(deadline=None, max_examples=12)
@given(st.sampled_from(["sft", "lora", "reward", "grpo"]), st.sampled_from(["rtx-4090:2", "a100-40gb:4", "l4:8"]))
def test_every_way_out_is_a_plan_that_fits(method: str, gpu: str) -> None:
    request = TrainingRequest(method, micro_batch=8, max_length=4096, gradient_checkpointing=False)  # type: ignore[arg-type]
    asked = TrainingJob("Qwen/Qwen3-8B", BASE, gpu, parse_gpu(gpu), request)
    for suggestion in training_suggestions(asked):
        assert suggestion.command.startswith(f"qserve plan train --method {method}") or "qlora" in suggestion.command
        assert suggestion.cost
