"""Operations that training takes of the model alone, counted by hand."""

from __future__ import annotations

from typing import Any

import pytest

from qserve.core.model_spec import ModelSpec
from qserve.planner.training.models import cast_of
from qserve.planner.training.operations import Operations, training_operations
from qserve.planner.training.training_request import TrainingRequest

LAYER = 64 * 4 * 16 + 2 * 64 * 2 * 16 + 4 * 16 * 64 + 3 * 64 * 128  # q, k and v, o, the MLP
HEAD = 1000 * 64
ATTENTION = 2 * 3 * 4 * 16


def operations(method: str, moe: bool = False, **fields: Any) -> Operations | None:
    config = {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "vocab_size": 1000,
        "tie_word_embeddings": True,
        "max_position_embeddings": 512,
    }
    if moe:
        config |= {"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "num_experts": 8}
        config |= {"num_experts_per_tok": 2, "moe_intermediate_size": 32}
    request = TrainingRequest(method, **fields)  # type: ignore[arg-type]
    return training_operations(cast_of(ModelSpec.from_config(config), request), request)


@pytest.mark.parametrize(
    ("method", "fields", "per_token", "per_position"),
    [
        ("sft", {}, 6 * (3 * LAYER + HEAD), 3 * ATTENTION),
        ("reward", {}, 6 * 3 * LAYER, 3 * ATTENTION),  # a looked-up embedding and a head of one number take nothing
        ("reward", {"freeze_base": True}, 2 * 3 * LAYER, ATTENTION),
        ("dpo", {}, 8 * (3 * LAYER + HEAD), 4 * ATTENTION),
        (
            "lora",
            {"lora_targets": "qkv", "lora_rank": 2},
            4 * (3 * LAYER + HEAD) + 6 * 3 * 2 * ((64 + 64) + 2 * (64 + 32)),
            3 * ATTENTION,
        ),
    ],
)
def test_operations_are_those_of_what_is_trained(
    method: str, fields: dict[str, Any], per_token: int, per_position: int
) -> None:
    assert operations(method, **fields) == Operations(per_token, per_position)


def test_a_token_passes_through_its_own_experts_alone() -> None:
    found = operations("sft", moe=True)
    assert found is not None
    layer = LAYER - 3 * 64 * 128 + 64 * 8 + 2 * 3 * 64 * 32  # the router, and two experts of eight
    assert found.per_token == 6 * (3 * layer + HEAD)


def test_rollouts_are_not_counted() -> None:
    assert operations("grpo", beta=0.0) is None


def test_longer_sequences_take_more_attention() -> None:
    assert Operations(10.0, 2.0).of(tokens=3, length=5) == 60
