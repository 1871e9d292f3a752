"""Ropes of config.json: how far they reach, and which of their keys is named where no engine starts with them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from qserve.core.checkpoint import Checkpoint
from qserve.core.model_spec import ModelSpec
from qserve.errors import BrokenCheckpoint, UsageError
from tests.unit.core.ropes import BROKEN, LLAMA3, LONGROPE, MODEL, YARN, without


def spec_of(**changed: Any) -> ModelSpec:
    return ModelSpec.from_config({**MODEL, **changed}, "m")


def checkpoint_of(**changed: Any) -> Checkpoint:
    config = {**MODEL, **changed}
    return Checkpoint("m", None, config, ModelSpec.from_config(config, "m"))


@pytest.mark.parametrize("name", BROKEN)
def test_what_no_engine_starts_with_is_named_by_its_key(name: str) -> None:
    changed, key = BROKEN[name]
    with pytest.raises(BrokenCheckpoint, match=key):
        spec_of(**changed)


@pytest.mark.parametrize("key", ["rope_scaling", "rope_parameters"])
@pytest.mark.parametrize(
    ("rope", "reach", "cached"),
    [
        ({}, 256, 256),
        (YARN, 1024, 1024),
        ({"type": "yarn", **without(YARN, "rope_type")}, 1024, 1024),
        (without(YARN, "original_max_position_embeddings"), 1024, 1024),
        ({**YARN, "factor": None}, 256, 256),
        ({"rope_type": "linear", "factor": 2.0}, 512, 512),
        ({"rope_type": "linear", "factor": 0.5}, 128, 128),
        ({"rope_type": "dynamic", "factor": 2.0}, 256, 256),
        (LLAMA3, 256, 256),
        (LONGROPE, 128, 384),
        ({"factor": 2.0}, 256, 256),
    ],
)
def test_how_far_a_rope_reaches(key: str, rope: dict[str, Any], reach: int, cached: int) -> None:
    spec = spec_of(**{key: rope})
    assert (spec.max_position_embeddings, spec.rope.cached) == (reach, cached)


def test_rope_scaling_goes_before_rope_parameters_as_transformers_has_it() -> None:
    assert spec_of(rope_scaling=YARN, rope_parameters={"rope_type": "default"}).rope.kind == "yarn"
    assert spec_of(rope_scaling=None, rope_parameters=YARN).rope.kind == "yarn"


def test_an_override_is_told_whole() -> None:
    """An engine takes it in place of config.json's own rope, with base, share and sections."""
    own = {"rope_theta": 1e6, "partial_rotary_factor": 0.25, "rope_type": "default", "mrope_section": [1, 1, 0]}
    base = Checkpoint("m", None, {**without(MODEL, "rope_theta"), "rope_parameters": own}, spec_of(rope_parameters=own))
    told = base.overridden({"rope_scaling": YARN}).override_of({"rope_scaling": YARN})
    assert told == {"rope_parameters": {**own, **YARN}, "max_position_embeddings": 1024}
    beside = checkpoint_of(rope_theta=5e5)
    keys = {"rope_parameters": {"type": "yarn", "factor": 2.0}}
    told = beside.overridden(keys).override_of(keys)
    rope = {"rope_theta": 5e5, "rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 256}
    assert told == {"rope_parameters": rope, "max_position_embeddings": 512}


def test_an_override_of_a_multimodal_config_goes_to_its_text_part() -> None:
    nested = Checkpoint("m", None, {"text_config": MODEL}, ModelSpec.from_config({"text_config": MODEL}, "m"))
    for keys in ({"rope_parameters": YARN}, {"text_config": {"rope_parameters": YARN}}):
        over = nested.overridden(keys)
        assert over.spec.max_position_embeddings == 1024
        assert over.override_of(keys)["text_config"]["rope_parameters"]["factor"] == 4.0
    assert nested.override_of({}) == {}


def test_a_broken_override_is_named_as_such() -> None:
    with pytest.raises(UsageError, match=r"--hf-overrides .*rope_parameters.factor is '4.0'.*without quotes"):
        checkpoint_of().overridden(json.loads(json.dumps({"rope_parameters": {**YARN, "factor": "4.0"}})))


OTHER_MODELS = ({"num_hidden_layers": 7}, {"hidden_size": 96}, {"vocab_size": 128}, {"rope_theta": 1e6, "head_dim": 48})


@pytest.mark.parametrize("keys", OTHER_MODELS)
def test_keys_that_make_another_model_are_refused(keys: dict[str, object]) -> None:
    with pytest.raises(UsageError, match="other weights than the checkpoint of m has"):
        checkpoint_of().overridden(keys)
