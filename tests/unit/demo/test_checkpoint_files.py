"""What the repository may hold of weights, and that the folder is complete."""

from __future__ import annotations

import json
from pathlib import Path

from qserve.demo import chat_model_path

MAX_WEIGHTS_BYTES = 10_000_000  # for the chat model and the reward model together


def test_weights_in_the_package_stay_small() -> None:
    weights = list(Path(chat_model_path()).parent.rglob("*.safetensors"))
    assert chat_model_path() / "model.safetensors" in weights
    assert sum(file.stat().st_size for file in weights) <= MAX_WEIGHTS_BYTES


def test_the_checkpoint_folder_is_complete() -> None:
    names = {file.name for file in chat_model_path().iterdir()}
    assert names == {
        "chat_template.jinja",
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    }


def test_the_config_is_a_qwen3_with_its_own_head_dim() -> None:
    config = json.loads((chat_model_path() / "config.json").read_text())
    assert config["architectures"] == ["Qwen3ForCausalLM"]
    assert config["dtype"] == "bfloat16"
    assert config["num_key_value_heads"] < config["num_attention_heads"]
    assert config["max_position_embeddings"] >= 2048
    assert config["head_dim"] == 64
