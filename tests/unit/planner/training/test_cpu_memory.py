"""What lives when on a CPU: gradients after activations, and temporaries of the largest tensor alone."""

from __future__ import annotations

from typing import Any

import pytest

from qserve.core.hardware import Hardware
from qserve.core.model_spec import ModelSpec
from qserve.planner.training import CardMemory, TrainingRequest, plan_training
from qserve.units import GIB, MIB

SPEC = ModelSpec.from_config(
    {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "hidden_size": 256,
        "intermediate_size": 768,
        "num_hidden_layers": 6,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "vocab_size": 8000,
        "tie_word_embeddings": True,
        "max_position_embeddings": 4096,
    }
)
EMBEDDING = 4 * 8000 * 256


def planned(method: str, ranks: int = 1, **fields: Any) -> CardMemory:
    request = TrainingRequest(
        method,
        precision="fp32",
        runtime_bytes=0,
        tiled_loss=method != "reward",
        **{"gradient_checkpointing": False, "max_length": 512, **fields},
    )
    cpu = Hardware((), 64 * GIB, 64 * GIB, 2).cpu_device
    plan = plan_training(SPEC, (cpu,) * ranks, request)
    assert plan.host_bytes == 0
    return plan.cards[0]


def terms(card: CardMemory) -> dict[str, int]:
    """Of the phase that needs most."""
    return {term.name: term.num_bytes for term in card.terms}


def all_terms(card: CardMemory) -> dict[str, int]:
    return {term.name: term.num_bytes for term in (*card.terms, *card.other_terms)}


@pytest.mark.parametrize(
    ("method", "fields", "backward_mib", "step_mib"),
    [
        # Bytes that torch's CPU allocator held at most in TRL's second step (its profiler), pages that a tile leaves
        # untouched taken off. One sequence at a time: nothing is padded.
        ("sft", {"max_length": 1024, "gradient_checkpointing": True}, 353, 118),
        ("sft", {"max_length": 1024, "gradient_checkpointing": True, "optimizer": "adafactor"}, 302, 67.5),
        ("sft", {"max_length": 1024, "gradient_checkpointing": True, "optimizer": "adamw-8bit"}, 327, 100),
        ("sft", {"max_length": 1024}, 492, 119),
        ("lora", {"max_length": 1024}, 414, 29.5),
    ],
)
def test_a_peak_is_that_of_trl_s_step(
    method: str, fields: dict[str, Any], backward_mib: float, step_mib: float
) -> None:
    phases = planned(method, **fields).phases
    assert phases["backward"] / MIB == pytest.approx(backward_mib, rel=0.01)
    assert phases["step"] / MIB == pytest.approx(step_mib, rel=0.01)


def test_gradients_are_there_with_the_activations_only_where_they_are_accumulated() -> None:
    once, accumulated = planned("reward"), planned("reward", gradient_accumulation_steps=2)
    assert "gradients (reward)" not in terms(once)
    assert terms(accumulated)["gradients (reward)"] == 4 * (EMBEDDING // 4 + 6 * 787_072) + 4 * 512
    difference = accumulated.phases["backward"] - once.phases["backward"]
    assert difference == terms(accumulated)["gradients (reward)"]


def test_with_few_tokens_the_last_gradient_is_the_peak() -> None:
    card = planned("sft", max_length=2)
    assert all_terms(card)["embedding gradient"] == EMBEDDING  # before it is added to lm_head's
    assert card.phase == "step"
    assert card.phases["step"] - card.phases["backward"] == EMBEDDING  # two temporaries of the largest tensor


def test_a_reward_head_looks_its_embedding_up_once() -> None:
    assert "embedding gradient" not in all_terms(planned("reward", max_length=2))
    card = planned("reward", max_length=2, gradient_accumulation_steps=3)
    assert all_terms(card)["embedding gradient"] == EMBEDDING


@pytest.mark.parametrize(("optimizer", "copies"), [("adamw", 2), ("adamw-fused", 0), ("lion", 3), ("sgd", 0)])
def test_a_step_takes_temporaries_of_the_largest_tensor(optimizer: str, copies: int) -> None:
    card = planned("sft", max_length=2, optimizer=optimizer)
    states = sum(
        size
        for name, size in all_terms(card).items()
        if name.split()[0] in ("weights", "gradients", "optimizer") and name != "optimizer step"
    )
    assert card.phases["step"] - states == copies * EMBEDDING


@pytest.mark.parametrize("fields", [{"zero_stage": 1}, {"zero_stage": 2}, {"zero_stage": 3}, {"fsdp": True}])
def test_processes_that_shard_need_less_than_those_that_do_not(fields: dict[str, Any]) -> None:
    whole, shard = planned("sft", ranks=4), planned("sft", ranks=4, **fields)
    assert all_terms(shard)["optimizer (policy)"] < all_terms(whole)["optimizer (policy)"] / 2
    assert shard.used_bytes < whole.used_bytes


def test_what_is_offloaded_to_ram_stays_in_a_process_on_a_cpu() -> None:
    plain = planned("sft", ranks=2, zero_stage=3)
    assert planned("sft", ranks=2, zero_stage=3, offload_optimizer="cpu", offload_param="cpu") == plain
