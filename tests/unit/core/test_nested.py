"""Where a config.json says what, of models whose language model is one part of several."""

from __future__ import annotations

from typing import Any

import pytest

from qserve.core.checkpoint import Checkpoint
from qserve.core.model_spec import ModelSpec
from qserve.core.nested import in_text_config, quantization_config, text_config, text_keys, with_keys, with_text_config
from qserve.hub.bundled import bundled_config
from qserve.hub.folder import is_tied
from qserve.hub.token_rows import rows_of

TEXT = {"vocab_size": 512, "tie_word_embeddings": True}
PLAIN: dict[str, Any] = {"model_type": "qwen3", **TEXT}
SEEING: dict[str, Any] = {"model_type": "qwen3_vl", "text_config": TEXT}
SPEAKING: dict[str, Any] = {"model_type": "qwen2_5_omni", "thinker_config": {"text_config": TEXT}, "talker_config": {}}


@pytest.mark.parametrize("config", [PLAIN, SEEING, SPEAKING])
def test_the_language_model_is_found_in_each(config: dict[str, Any]) -> None:
    assert text_config(config)["vocab_size"] == rows_of(config) == 512
    assert is_tied(config)
    untied = with_text_config(config, {**text_config(config), "tie_word_embeddings": False})
    assert not is_tied(untied)
    assert is_tied(config)  # as it was
    assert set(untied) == set(config)


def test_keys_are_nested_as_the_config_nests_them() -> None:
    keys = {"max_position_embeddings": 8}
    assert in_text_config(PLAIN, keys) == keys
    assert in_text_config(SEEING, keys) == {"text_config": keys}
    assert in_text_config(SPEAKING, keys) == {"thinker_config": {"text_config": keys}}
    for config in (PLAIN, SEEING, SPEAKING):
        assert text_keys(in_text_config(config, keys)) == keys


@pytest.mark.parametrize(
    "config",
    [
        {"quantization_config": {"bits": 4}, **SPEAKING},
        {"thinker_config": {"quantization_config": {"bits": 4}, "text_config": TEXT}},
        {"thinker_config": {"text_config": {"quantization_config": {"bits": 4}, **TEXT}}},
        {"text_config": {"quantization_config": {"bits": 4}}},
    ],
)
def test_packing_is_found_wherever_it_is_told(config: dict[str, Any]) -> None:
    assert quantization_config(config) == {"bits": 4}
    assert quantization_config(SPEAKING) is None


@pytest.mark.parametrize(
    "config",
    [
        PLAIN,
        SEEING,
        SPEAKING,
        {**SEEING, "tie_word_embeddings": True},
        {"thinker_config": {"text_config": TEXT, "tie_word_embeddings": True}},
        {"thinker_config": TEXT},
    ],
)
def test_a_head_is_untied_wherever_it_was_tied(config: dict[str, Any]) -> None:
    assert is_tied(config)
    untied = with_keys(config, {"tie_word_embeddings": False})
    assert not is_tied(untied) and text_config(untied)["tie_word_embeddings"] is False
    assert is_tied(config)


def test_an_override_of_a_thinker_goes_to_its_language_model() -> None:
    name = "Qwen/Qwen2.5-Omni-7B"
    config = bundled_config(name) or {}
    base = Checkpoint(name, None, config, ModelSpec.from_config(config, name))
    for keys in ({"max_position_embeddings": 4096}, in_text_config(config, {"max_position_embeddings": 4096})):
        over = base.overridden(keys)
        assert over.spec.max_position_embeddings == 4096
        assert over.spec.audio == base.spec.audio
        assert over.override_of(keys) == {"thinker_config": {"text_config": {"max_position_embeddings": 4096}}}


def test_a_thinker_alone_is_the_same_model() -> None:
    name = "Qwen/Qwen2.5-Omni-7B"
    config = bundled_config(name) or {}
    alone = {**config["thinker_config"], "architectures": ["Qwen2_5OmniThinkerForConditionalGeneration"]}
    spec, whole = ModelSpec.from_config(alone, name), ModelSpec.from_config(config, name)
    assert (spec.family, spec.audio, spec.vision, spec.layer_types) == (
        whole.family,
        whole.audio,
        whole.vision,
        whole.layer_types,
    )


def test_an_encoder_decides_the_family_before_a_language_model_of_another() -> None:
    config = bundled_config("Qwen/Qwen2-Audio-7B") or {}
    assert config["text_config"]["model_type"] == "qwen2"
    assert ModelSpec.from_config(config).family.name == "qwen2_audio"
    only_text = {**config, "architectures": ["Qwen2ForCausalLM"]}
    assert ModelSpec.from_config(only_text).audio is None
