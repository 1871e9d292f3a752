"""Tensors counted from dimensions against the modules of transformers themselves, built without memory."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
import transformers

from qserve.core.dimensions import num_parameters, tensors_of
from qserve.core.families import FAMILIES
from qserve.core.model_spec import ModelSpec

SMALL: dict[str, Any] = {
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "intermediate_size": 128,
    "vocab_size": 512,
    "max_position_embeddings": 256,
}
SPARSE = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "decoder_sparse_step": 1}
HYBRID = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
}
SHARED = {"shared_expert_intermediate_size": 48}
INDEXED = {
    "indexer_n_heads": 2,
    "indexer_kv_heads": 1,
    "indexer_head_dim": 32,
    "indexer_budget": 8,
    "indexer_compress_ratio": 4,
    "hc_count": 3,
    "hc_lowrank": 24,
}
TABLES = {
    "ple_layer_ids": [2],
    "ple_embed_dim": 32,
    "ple_conv_kernel_size": 3,
    "ngram_size": 3,
    "heads_per_ngram": 2,
    "ngram_vocab_size_base": 31,
    "make_ngram_vocab_size_divisible_by": 8,
    "eos_token_id": 1,
}
EXPERIMENTAL = {"head_dim": 32, **SPARSE, **SHARED, **HYBRID, **INDEXED}

CASES = [
    ("llama", {}),
    ("llama", {"attention_bias": True, "tie_word_embeddings": True}),
    ("mistral", {}),
    ("qwen2", {"head_dim": 16}),
    ("qwen2", {"head_dim": 16, "tie_word_embeddings": True}),
    ("qwen2_moe", {"head_dim": 16, **SPARSE, **SHARED}),
    ("qwen2_moe", {"head_dim": 16, **SPARSE, **SHARED, "decoder_sparse_step": 2}),
    ("qwen3", {}),
    ("qwen3", {"tie_word_embeddings": True}),
    ("qwen3_moe", {**SPARSE}),
    ("qwen3_moe", {**SPARSE, "mlp_only_layers": [0]}),
    ("qwen3_next", {**SPARSE, **SHARED, **HYBRID}),
    ("qwen3_5_text", {**HYBRID}),
    ("qwen3_5_moe_text", {**SPARSE, **SHARED, **HYBRID}),
    ("qwen4_exp_text", EXPERIMENTAL),
    ("qwen4_exp_text", {**EXPERIMENTAL, **TABLES}),
    ("qwen4_exp_text", {**EXPERIMENTAL, **TABLES, "num_hidden_layers": 8, "ple_layer_ids": [6, 1, 3]}),
    ("qwen4_exp_text", {**EXPERIMENTAL, **TABLES, "ngram_size": 5, "ple_embed_dim": None, "ple_conv_kernel_size": 2}),
    ("qwen4_exp_text", {**EXPERIMENTAL, **TABLES, "layer_types": ["indexed_attention", "linear_attention"] * 2}),
    ("qwen4_exp_text", {**EXPERIMENTAL, **TABLES, "layer_types": ["full_attention", "linear_attention"] * 2}),
    ("qwen4_exp_text", {**EXPERIMENTAL, "hc_count": 2, "indexer_n_heads": 4, "indexer_head_dim": 64}),
]


@pytest.mark.parametrize(("model_type", "changes"), CASES)
def test_a_language_model_has_the_parameters_that_its_dimensions_say(model_type: str, changes: dict[str, Any]) -> None:
    config = transformers.AutoConfig.for_model(model_type, **{**SMALL, "tie_word_embeddings": False, **changes})
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    assert num_parameters(_spec(config, type(model).__name__)) == model.num_parameters()


@pytest.mark.parametrize("model_type", ["qwen2", "qwen3", "llama"])
def test_a_scoring_head_takes_the_place_of_lm_head(model_type: str) -> None:
    config = transformers.AutoConfig.for_model(model_type, **{**SMALL, "head_dim": 16}, num_labels=1)
    with torch.device("meta"):
        model = transformers.AutoModelForSequenceClassification.from_config(config)
    assert num_parameters(_spec(config, type(model).__name__)) == model.num_parameters()


def test_tensors_of_a_model_with_streams_and_tables_are_those_of_its_modules() -> None:
    """Kind by kind, as a sum may be right by chance."""
    config = transformers.AutoConfig.for_model("qwen4_exp_text", **{**SMALL, **EXPERIMENTAL, **TABLES})
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    built = Counter[str]()
    for name, parameter in model.named_parameters():
        built[_kind(name)] += parameter.numel()
    counted = Counter[str]()
    for tensor in tensors_of(_spec(config, type(model).__name__)):
        counted[_kind(tensor.name)] += tensor.num_elements
    assert counted == built


def _kind(name: str) -> str:
    """Attention, experts, gates of streams, …, whatever layer it is of."""
    parts = [part for part in name.split(".") if not part.isdigit() and part not in ("model", "layers", "weight")]
    joined = {"gate_up_proj": "gate_proj", "up_proj": "gate_proj"}  # as the library joins them
    return ".".join(joined.get(part, part) for part in parts)


@pytest.mark.parametrize(("model_type", "text_type"), [("qwen3_vl", "qwen3_vl_text"), ("qwen3_5", "qwen3_5_text")])
def test_a_vision_encoder_is_counted(model_type: str, text_type: str) -> None:
    vision = {
        "depth": 2,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_heads": 2,
        "out_hidden_size": 64,
        "num_position_embeddings": 16,
        "deepstack_visual_indexes": [0],
    }
    text = {**SMALL, **(HYBRID if model_type == "qwen3_5" else {}), "model_type": text_type}
    config = transformers.AutoConfig.for_model(model_type, text_config=text, vision_config=vision)
    with torch.device("meta"):
        model = transformers.AutoModelForImageTextToText.from_config(config)
    assert num_parameters(_spec(config, type(model).__name__)) == model.num_parameters()


@pytest.mark.parametrize(
    ("model_type", "vision"),
    [
        ("qwen2_vl", {"embed_dim": 32, "mlp_ratio": 3, "hidden_size": 64}),
        ("qwen2_5_vl", {"hidden_size": 32, "intermediate_size": 48, "out_hidden_size": 64}),
    ],
)
def test_earlier_vision_encoders_have_towers_of_their_own(model_type: str, vision: dict[str, Any]) -> None:
    text = {**SMALL, "head_dim": 16, "model_type": f"{model_type}_text"}
    towers = {"depth": 2, "num_heads": 2, **vision}
    config = transformers.AutoConfig.for_model(model_type, text_config=text, vision_config=towers)
    with torch.device("meta"):
        model = transformers.AutoModelForImageTextToText.from_config(config)
    assert num_parameters(_spec(config, type(model).__name__)) == model.num_parameters()


def _spec(config: Any, architecture: str) -> ModelSpec:
    plain = {**config.to_dict(), "architectures": [architecture]}
    for holder in (plain, plain.get("text_config", {})):
        holder["mtp_num_hidden_layers"] = 0  # transformers does not build the MTP head
    return ModelSpec.from_config(plain, "small")


AUDIO = {"d_model": 32, "encoder_layers": 3, "encoder_ffn_dim": 48, "encoder_attention_heads": 2, "num_mel_bins": 20}
LATER = {**AUDIO, "downsample_hidden_size": 6, "output_dim": 64}
VISION = {"depth": 2, "hidden_size": 32, "intermediate_size": 48, "num_heads": 2, "out_hidden_size": 64}
DEEPSTACK = {**VISION, "num_position_embeddings": 16, "deepstack_visual_indexes": [0]}


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("Qwen2Audio", {"audio_config": AUDIO, "text_config": {**SMALL, "head_dim": 16, "model_type": "qwen2"}}),
        (
            "Qwen2_5OmniThinker",
            {
                "audio_config": {**AUDIO, "output_dim": 64},
                "vision_config": VISION,
                "text_config": {**SMALL, "head_dim": 16, "model_type": "qwen2_5_omni_text"},
            },
        ),
        (
            "Qwen3OmniMoeThinker",
            {
                "audio_config": LATER,
                "vision_config": DEEPSTACK,
                "text_config": {**SMALL, **SPARSE, "model_type": "qwen3_omni_moe_text"},
            },
        ),
        ("Qwen3ASR", {"audio_config": LATER, "text_config": {**SMALL, "model_type": "qwen3"}}),
    ],
)
def test_an_audio_encoder_is_counted(name: str, parts: dict[str, Any]) -> None:
    config = getattr(transformers, f"{name}Config")(**parts, tie_word_embeddings=False)
    config.text_config.tie_word_embeddings = False
    with torch.device("meta"):
        model = getattr(transformers, f"{name}ForConditionalGeneration")(config)
    assert num_parameters(_spec(config, type(model).__name__)) == sum(one.numel() for one in model.parameters())


def test_the_library_has_a_class_for_the_families_that_are_said_to_have_one() -> None:
    known = transformers.models.auto.modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    assert [name for name, row in FAMILIES.items() if row.has_library_class is not (name in known)] == []
