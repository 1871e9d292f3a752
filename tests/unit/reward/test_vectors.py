"""Embedding models from the files of sentence-transformers: what they say, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from qserve.errors import BrokenCheckpoint
from qserve.reward.checkpoints import RewardCheckpoint, recognise
from qserve.reward.settings import RewardSettings
from tests.unit.reward.stored import HIDDEN, body, write_adapter, write_folder, write_safetensors

STEPS = ("Transformer", "Pooling", "Normalize")
LAST = {"word_embedding_dimension": HIDDEN, "pooling_mode_lasttoken": True, "pooling_mode_mean_tokens": False}
TASK = "Instruct: Find it\nQuery: "


def embedder(
    folder: Path,
    steps: tuple[str, ...] = STEPS,
    pooling: Mapping[str, Any] = LAST,
    files: Mapping[str, Any] | None = None,
    **config: Any,
) -> Path:
    path = write_folder(folder, body(""), architectures=["Qwen3ForCausalLM"], **config)
    module = "sentence_transformers.models."
    listed = [{"idx": at, "path": f"{at}_{kind}" * bool(at), "type": module + kind} for at, kind in enumerate(steps)]
    written = {"modules.json": listed, "1_Pooling/config.json": pooling, **(files or {})}
    for name, content in written.items():
        (path / name).parent.mkdir(exist_ok=True)
        (path / name).write_text(json.dumps(content))
    return path


def found(path: Path, **settings: Any) -> RewardCheckpoint:
    return recognise(path, RewardSettings(**settings, embeds=True))


def test_a_folder_as_qwen3_embedding_has_it(tmp_path: Path) -> None:
    prompts = {"query": TASK, "document": ""}
    files = {
        "config_sentence_transformers.json": {"prompts": prompts, "default_prompt_name": "document"},
        "sentence_bert_config.json": {"max_seq_length": 256, "do_lower_case": False},
    }
    checkpoint = found(embedder(tmp_path, files=files, matryoshka_dimensions=[16, 32]))
    vectors = checkpoint.vectors
    assert vectors is not None
    assert (checkpoint.format, checkpoint.pooling, checkpoint.body_prefix) == ("embedding", "last", "")
    assert (vectors.size, vectors.is_normalized, vectors.max_length) == (HIDDEN, True, 256)
    assert (dict(vectors.prompts), vectors.default_prompt) == (prompts, "document")
    assert (vectors.instruct, vectors.dimensions) == ("Instruct: {}\nQuery: ", (16, 32))
    planned = checkpoint.planned()
    assert planned.tensors is not None
    assert len(planned.tensors) == len(body("")), "no head is counted"


@pytest.mark.parametrize(
    ("pooling", "read"),
    [
        ({"pooling_mode_mean_tokens": True}, "mean"),
        ({"pooling_mode_cls_token": True}, "first"),
        ({"pooling_mode": "lasttoken"}, "last"),
        ({"pooling_mode": ["mean"]}, "mean"),
        ({}, "mean"),
    ],
)
def test_which_token_is_read(pooling: dict[str, Any], read: str, tmp_path: Path) -> None:
    """By the switches of older releases, or the word of sentence-transformers 6; its default is the mean."""
    checkpoint = found(embedder(tmp_path, ("Transformer", "Pooling"), pooling))
    assert checkpoint.vectors is not None
    assert (checkpoint.pooling, checkpoint.vectors.is_normalized) == (read, False)


def test_a_layer_behind_the_pooling_is_the_head(tmp_path: Path) -> None:
    dense = {"in_features": HIDDEN, "out_features": 16, "activation_function": "torch.nn.modules.linear.Identity"}
    path = embedder(tmp_path, (*STEPS[:2], "Dense", "Normalize"), files={"2_Dense/config.json": dense})
    write_safetensors(path / "2_Dense" / "model.safetensors", {"linear.weight": (16, HIDDEN), "linear.bias": (16,)})
    checkpoint = found(path)
    assert checkpoint.vectors is not None
    assert (checkpoint.head.num_labels, checkpoint.vectors.size, checkpoint.head.has_bias) == (16, 16, True)
    (path / "2_Dense" / "config.json").write_text(json.dumps(dense | {"activation_function": "torch.nn.Tanh"}))
    with pytest.raises(BrokenCheckpoint, match="activation Tanh"):
        found(path)


def test_a_folder_without_steps_needs_to_be_told(tmp_path: Path) -> None:
    path = write_folder(tmp_path, body(""), architectures=["Qwen3ForCausalLM"])
    with pytest.raises(BrokenCheckpoint, match=r"no modules.json.*--pooling last"):
        found(path)
    checkpoint = found(path, pooling="last")
    assert checkpoint.vectors is not None
    assert (checkpoint.pooling, checkpoint.vectors.is_normalized) == ("last", True)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "another step": ({"steps": (*STEPS[:2], "LayerNorm")}, "Transformer, Pooling, LayerNorm.*one Dense, Normalize"),
    "another order": ({"steps": ("Transformer", "Normalize", "Pooling")}, "in this order"),
    "two poolings": ({"pooling": {"pooling_mode": ["mean", "max"]}}, "pools by mean and max.*lasttoken, mean, cls"),
    "a prompt that is not pooled": ({"pooling": {"pooling_mode": "mean", "include_prompt": False}}, "include_prompt"),
    "a default prompt that is none": (
        {"files": {"config_sentence_transformers.json": {"prompts": {"a": "b"}, "default_prompt_name": "query"}}},
        "default_prompt_name is 'query', and the prompts are a",
    ),
    "lower case": ({"files": {"sentence_bert_config.json": {"do_lower_case": True}}}, "lower-case"),
    "steps that are no list": ({"files": {"modules.json": {}}}, "is a JSON dict, but must be a list"),
    "a step elsewhere": (
        {"files": {"modules.json": [{"type": "x.Transformer", "path": ""}, {"type": "x.Pooling", "path": "../1"}]}},
        "no 'type' and 'path' below its folder",
    ),
    "a body elsewhere": (
        {
            "files": {
                "modules.json": [{"type": "x.Transformer", "path": "0"}, {"type": "x.Pooling", "path": "1_Pooling"}]
            }
        },
        "has its body in 0",
    ),
    "pictures": ({"vision_config": {"depth": 1}}, "embeds pictures"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_refused_with_what_was_found(what: str, tmp_path: Path) -> None:
    given, message = REFUSED[what]
    with pytest.raises(BrokenCheckpoint, match=message):
        found(embedder(tmp_path, **given))


def test_an_adapter_is_to_be_merged(tmp_path: Path) -> None:
    base = write_folder(tmp_path / "base", body(""), architectures=["Qwen3ForCausalLM"])
    path = write_adapter(tmp_path / "adapter", str(base), {"base_model.model.lora_A.weight": (4, HIDDEN)})
    with pytest.raises(BrokenCheckpoint, match="merge the adapter"):
        found(path)
