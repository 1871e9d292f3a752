"""What a merged checkpoint will hold, and what is refused before anything is read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from qserve.derive.merge.adapter import read_adapter
from qserve.derive.merge.plan import MergePlan, plan_merge
from qserve.errors import BrokenCheckpoint, ModelNotFound, UsageError
from tests.unit.hub.test_folder import CONFIG, write_safetensors

Q = "model.layers.0.self_attn.q_proj"
WEIGHTS = {"model.embed_tokens.weight": (32, 8), f"{Q}.weight": (8, 8), "model.norm.weight": (8,)}
FACTORS = {f"base_model.model.{Q}.lora_A.weight": (2, 8), f"base_model.model.{Q}.lora_B.weight": (8, 2)}
EMBEDDING = {"base_model.model.model.embed_tokens.weight": (32, 8)}
SCORE = {"base_model.model.score.weight": (3, 8)}


def base_in(folder: Path, **keys: Any) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({**CONFIG, **keys}))
    write_safetensors(folder / "model.safetensors", WEIGHTS)
    return folder


def adapter_in(folder: Path, tensors: dict[str, tuple[int, ...]] = FACTORS, **keys: Any) -> Path:
    folder.mkdir()
    config = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "task_type": "CAUSAL_LM", **keys}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    write_safetensors(folder / "adapter_model.safetensors", tensors)
    return folder


def planned(
    tmp_path: Path, tensors: dict[str, tuple[int, ...]], base: dict[str, Any] | None = None, **keys: Any
) -> MergePlan:
    adapter = read_adapter(adapter_in(tmp_path / "adapter", tensors, **keys))
    return plan_merge(adapter, base_in(tmp_path / "base", **(base or {})), "org/base")


def test_a_chat_model_keeps_its_tensors_and_its_config(tmp_path: Path) -> None:
    plan = planned(tmp_path, FACTORS)
    assert list(plan.tensors) == list(WEIGHTS) and plan.config == CONFIG and not plan.is_reward
    assert plan.num_bytes == 2 * (32 * 8 + 8 * 8 + 8)
    # A weight of 64 values three times in fp32, all tensors twice, and the factors.
    assert plan.memory_bytes - (400 << 20) == 2 * plan.num_bytes + 12 * 64 + 2 * (16 + 16)


@pytest.mark.parametrize(("keys", "is_tied"), [({}, False), ({"ensure_weight_tying": True}, True)])
def test_a_tied_head_that_is_not_trained_stays_as_it_was(tmp_path: Path, keys: dict[str, Any], is_tied: bool) -> None:
    """The head was the base's while the embedding was trained."""
    plan = planned(tmp_path, EMBEDDING, **keys)
    assert plan.config["tie_word_embeddings"] is is_tied
    assert ("lm_head.weight" in plan.tensors) is not is_tied
    if not is_tied:
        assert plan.tensors["lm_head.weight"].name == "model.embed_tokens.weight"
        assert "lm_head.weight" not in plan.changes.names


def test_a_head_that_the_adapter_brings_makes_a_classifier(tmp_path: Path) -> None:
    adapter = adapter_in(tmp_path / "adapter", FACTORS | SCORE, task_type="SEQ_CLS")
    (adapter / "config.json").write_text(json.dumps({"pad_token_id": 7, "hidden_size": 1}))
    plan = plan_merge(read_adapter(adapter), base_in(tmp_path / "base"), "org/base")
    assert plan.is_reward and "score.weight" in plan.tensors
    assert plan.config["architectures"] == ["Qwen3ForSequenceClassification"]
    assert plan.config["id2label"] == {"0": "LABEL_0", "1": "LABEL_1", "2": "LABEL_2"}
    assert plan.config["pad_token_id"] == 7 and plan.config["hidden_size"] == 8


def test_a_classifier_without_a_head_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BrokenCheckpoint, match="modules_to_save"):
        planned(tmp_path, FACTORS, task_type="SEQ_CLS")


@pytest.mark.parametrize(
    ("base_id", "instead"),
    [
        ("Qwen/Qwen3-32B-AWQ", "--into Qwen/Qwen3-32B\\)"),
        ("somebody/Qwen3-8B-bnb-4bit", "--into Qwen/Qwen3-8B\\)"),
        ("./packed", "--into MODEL, the 16-bit model"),
    ],
)
def test_a_quantized_base_is_refused_by_the_name_of_the_16_bit_one(tmp_path: Path, base_id: str, instead: str) -> None:
    base = base_in(tmp_path / "base", quantization_config={"quant_method": "awq", "bits": 4, "group_size": 128})
    with pytest.raises(UsageError, match=instead):
        plan_merge(read_adapter(adapter_in(tmp_path / "adapter")), base, base_id)


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"peft_type": "IA3"}, "of the kind IA3"),
        ({"trainable_token_indices": [1, 2]}, "single rows of the embedding"),
        ({"target_parameters": ["mlp.experts.gate_up_proj"]}, "fused parameters"),
        ({"init_lora_weights": "pissa_niter_16"}, "changes the base's weights"),
    ],
)
def test_what_can_not_be_merged_exactly_is_refused(tmp_path: Path, keys: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        read_adapter(adapter_in(tmp_path / "adapter", **keys))


def test_what_is_no_adapter_says_what_it_is(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match="a whole model, which needs no merging"):
        read_adapter(base_in(tmp_path / "base"))
    with pytest.raises(ModelNotFound, match="there is no folder"):
        read_adapter(tmp_path / "nothing")
    (adapter_in(tmp_path / "adapter") / "adapter_model.safetensors").unlink()
    with pytest.raises(BrokenCheckpoint, match="no weights"):
        read_adapter(tmp_path / "adapter")
