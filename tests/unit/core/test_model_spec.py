"""What config.json says, and what it must not be allowed to leave unsaid."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest

from qserve.core.dimensions import num_parameters
from qserve.core.model_spec import ModelSpec
from qserve.errors import BrokenCheckpoint, UnknownArchitecture
from qserve.hub.bundled import bundled_config, known_ids

PARAMETERS = Path(__file__).parents[2] / "golden" / "parameters.csv"
QWEN3: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "intermediate_size": 128,
    "vocab_size": 512,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": True,
    "dtype": "bfloat16",
}


def published() -> list[tuple[str, int]]:
    with PARAMETERS.open(newline="") as stream:
        return [(row["model"], int(row["parameters"])) for row in csv.DictReader(stream)]


def spec(**changes: Any) -> ModelSpec:
    return ModelSpec.from_config({**QWEN3, **changes}, "test")


@pytest.mark.parametrize(("model", "parameters"), published())
def test_dimensions_count_to_the_published_parameters(model: str, parameters: int) -> None:
    config = bundled_config(model)
    assert config is not None
    assert num_parameters(ModelSpec.from_config(config, model)) == pytest.approx(parameters, rel=1e-3)


@pytest.mark.parametrize("model", known_ids())
def test_every_bundled_model_is_understood(model: str) -> None:
    assert ModelSpec.from_config(bundled_config(model) or {}, model).num_hidden_layers > 0


def test_head_dim_is_the_configs_own() -> None:
    assert spec().head_dim == 32  # hidden/heads would be 16
    without = {key: value for key, value in QWEN3.items() if key != "head_dim"}
    assert ModelSpec.from_config(without).head_dim == 128  # as Qwen3Config has it, not hidden/heads
    assert ModelSpec.from_config({**without, "model_type": "qwen2"}).head_dim == 16


def test_hybrid_layers_from_interval_and_from_list() -> None:
    hybrid = spec(model_type="qwen3_5_text", num_hidden_layers=8)
    assert (hybrid.num_full_layers, hybrid.num_linear_layers) == (2, 6)
    listed = spec(layer_types=["linear_attention", "full_attention"] * 2, model_type="qwen3_5_text")
    assert (listed.num_full_layers, listed.num_linear_layers) == (2, 2)


def test_a_sparse_model_says_how_many_experts() -> None:
    with pytest.raises(BrokenCheckpoint, match="num_experts"):
        spec(model_type="qwen3_moe")
    sparse = {"num_experts_per_tok": 2, "moe_intermediate_size": 32}
    renamed = spec(model_type="qwen3_moe", num_local_experts=8, **sparse)  # as transformers 5 writes it
    assert renamed.moe is not None
    assert renamed.moe.num_experts == 8


def test_layer_types_of_wrong_length_or_name_are_refused() -> None:
    with pytest.raises(BrokenCheckpoint, match="3 entries"):
        spec(layer_types=["full_attention"] * 3)
    with pytest.raises(BrokenCheckpoint, match="telepathy"):
        spec(layer_types=["telepathy"] * 4)


def test_sliding_window_only_where_it_is_switched_on() -> None:
    assert spec(sliding_window=1024, use_sliding_window=False, max_window_layers=2).num_sliding_layers == 0
    assert spec(sliding_window=1024, use_sliding_window=True, max_window_layers=3).num_sliding_layers == 1
    assert spec(model_type="mistral", sliding_window=1024).num_sliding_layers == 4


def test_yarn_lengthens_the_positions() -> None:
    rope = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096}
    assert spec(rope_scaling=rope).max_position_embeddings == 16384


def test_multimodal_configs_nest_the_language_model() -> None:
    nested = {
        "model_type": "qwen3_5",
        "architectures": ["Qwen3_5ForConditionalGeneration"],
        "text_config": {**QWEN3, "model_type": "qwen3_5_text"},
        "vision_config": {"depth": 2},
    }
    both = ModelSpec.from_config(nested)
    assert both.family.name == "qwen3_5"
    assert both.vision is not None
    assert both.vision.depth == 2


@pytest.mark.parametrize(
    ("architecture", "kind", "labels", "hidden_layers"),
    [
        ("Qwen3ForCausalLM", "lm", 0, 0),
        ("Qwen3ForSequenceClassification", "score", 2, 0),
        ("Qwen2ForRewardModel", "score", 1, 1),
        ("Qwen2ForProcessRewardModel", "score", 2, 1),
    ],
)
def test_heads(architecture: str, kind: str, labels: int, hidden_layers: int) -> None:
    head = spec(architectures=[architecture]).head
    assert (head.kind, head.num_labels, head.hidden_layers) == (kind, labels, hidden_layers)


def test_num_labels_of_the_config_counts() -> None:
    assert spec(architectures=["Qwen3ForSequenceClassification"], num_labels=1).head.num_labels == 1
    named = spec(architectures=["Qwen3ForSequenceClassification"], id2label={"0": "a", "1": "b", "2": "c"})
    assert named.head.num_labels == 3


def test_unknown_model_type_is_named_not_guessed() -> None:
    with pytest.raises(UnknownArchitecture, match=r"'qwen9_exp'.*Known are"):
        spec(model_type="qwen9_exp")


def test_unknown_quantization_is_named() -> None:
    with pytest.raises(UnknownArchitecture, match="'homebrew'"):
        spec(quantization_config={"quant_method": "homebrew"})


@pytest.mark.parametrize("value", [None, 0, -1, "64", 1.5, True])
def test_a_dimension_that_is_no_positive_integer_is_refused(value: Any) -> None:
    with pytest.raises(BrokenCheckpoint, match="hidden_size"):
        spec(hidden_size=value)


@pytest.mark.parametrize(
    ("config", "scheme", "group_size"),
    [
        ({"quant_method": "awq", "bits": 4, "group_size": 128}, "awq", 128),
        ({"quant_method": "gptq", "bits": 4, "group_size": 64}, "gptq-int4", 64),
        ({"quant_method": "gptq", "bits": 8, "group_size": -1}, "gptq-int8", 0),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, "fp8", 0),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, "bnb-int8", 0),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_use_double_quant": True}, "bnb-nf4", 64),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {"g": {"weights": {"num_bits": 4, "type": "int", "group_size": 128}}},
            },
            "w4a16",
            128,
        ),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {"g": {"weights": {"num_bits": 8, "type": "int"}, "input_activations": {}}},
            },
            "w8a8",
            0,
        ),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {"g": {"weights": {"num_bits": 8, "type": "int"}, "input_activations": None}},
            },
            "w8a16",
            0,
        ),
        (
            {"quant_method": "compressed-tensors", "config_groups": {"g": {"weights": {"num_bits": 8, "type": "int"}}}},
            "w8a16",
            0,
        ),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {"g": {"weights": {"num_bits": 8, "type": "float"}}},
            },
            "fp8",
            0,
        ),
    ],
)
def test_quantized_checkpoints_say_what_they_are(config: dict[str, Any], scheme: str, group_size: int) -> None:
    quantization = spec(quantization_config=config).quantization
    assert quantization is not None
    assert (quantization.scheme, quantization.group_size) == (scheme, group_size)
