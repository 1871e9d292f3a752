"""Adapters in peft's format: what is read of them, and what is refused by name."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from qserve.core.model_spec import ModelSpec
from qserve.errors import BrokenCheckpoint, ModelNotFound, UsageError
from qserve.hub.adapter import check_base, read_adapter
from qserve.hub.folder import read_config
from qserve.hub.resolve import resolve
from tests.unit.peft_folder import pair, write_folder

Q0 = "model.layers.0.self_attn.q_proj"
DOWN1 = "model.layers.1.mlp.down_proj"


def test_ranks_shapes_and_scalings_are_those_of_peft(tmp_path: Path) -> None:
    shapes = {**pair(Q0, 64, 96), **pair(DOWN1, 32, 64, rank=2)}
    patterns = {"rank_pattern": {"down_proj": 2}, "alpha_pattern": {r"layers\.1\.mlp\.down_proj": 32}}
    adapter = read_adapter(write_folder(tmp_path / "a", shapes, **patterns))
    assert adapter.ranks == {Q0: 4, DOWN1: 2} and adapter.rank == 4
    assert adapter.shapes == {Q0: (64, 96), DOWN1: (32, 64)}
    assert adapter.targets == ("down_proj", "q_proj")
    assert (adapter.scaling(Q0), adapter.scaling(DOWN1)) == (2.0, 16.0)
    stabilized = read_adapter(write_folder(tmp_path / "b", pair(Q0, 64, 96), use_rslora=True))
    assert stabilized.scaling(Q0) == 8 / math.sqrt(4)


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({"use_dora": True}, "DoRA"),
        ({"bias": "lora_only"}, "bias='lora_only'"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save=lm_head"),
        ({"init_lora_weights": "pissa"}, "init_lora_weights='pissa'"),
        ({"init_lora_weights": "lora_ga"}, "init_lora_weights='lora_ga'"),
        ({"kasa_config": {"rank": 4}}, "KaSA"),
        ({"layer_replication": [[0, 2]]}, "replicated layers"),
        ({"peft_type": "IA3"}, "'IA3'"),
    ],
)
def test_what_is_not_served_is_refused_by_name(tmp_path: Path, config: dict[str, object], named: str) -> None:
    with pytest.raises(UsageError, match=named.replace("[", r"\[")):
        read_adapter(write_folder(tmp_path / "a", pair(Q0, 64, 96), **config))


def test_a_folder_without_an_adapter_says_what_it_has(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"")
    with pytest.raises(ModelNotFound, match=r"no adapter_config.json.*it has model.safetensors"):
        read_adapter(tmp_path)
    with pytest.raises(ModelNotFound, match="is no folder"):
        read_adapter(tmp_path / "nowhere")
    write_folder(tmp_path / "pickled", pair(Q0, 64, 96))
    (tmp_path / "pickled/adapter_model.safetensors").rename(tmp_path / "pickled/adapter_model.bin")
    with pytest.raises(ModelNotFound, match="save it as safetensors"):
        read_adapter(tmp_path / "pickled")


def test_damage_is_told(tmp_path: Path) -> None:
    half = {name: shape for name, shape in pair(Q0, 64, 96).items() if "lora_A" in name}
    with pytest.raises(BrokenCheckpoint, match="needs matrices lora_A and lora_B"):
        read_adapter(write_folder(tmp_path / "half", half))
    with pytest.raises(BrokenCheckpoint, match=r"has the rank 2, and adapter_config\.json says 4"):
        read_adapter(write_folder(tmp_path / "other", pair(Q0, 64, 96, rank=2)))
    with pytest.raises(UsageError, match=r"for example lm_head\.weight"):
        read_adapter(write_folder(tmp_path / "whole", {**pair(Q0, 64, 96), "lm_head.weight": (8, 64)}))
    with pytest.raises(UsageError, match="write names of modules"):
        read_adapter(write_folder(tmp_path / "pattern", pair(Q0, 64, 96), rank_pattern={"(a+)+": 4}))


def test_a_head_is_taken_where_it_is_asked_for(tmp_path: Path) -> None:
    folder = write_folder(
        tmp_path / "a", {**pair(Q0, 64, 96), "base_model.model.score.weight": (1, 64)}, modules_to_save=["score"]
    )
    assert list(read_adapter(folder, heads=("score",)).heads) == ["base_model.model.score.weight"]
    with pytest.raises(UsageError, match="modules_to_save=score"):
        read_adapter(folder)


def test_an_adapter_of_another_base_is_told_from_its_shapes(tmp_path: Path) -> None:
    base = resolve("demo").folder
    assert base is not None
    spec = ModelSpec.from_config(read_config(base), "demo")
    query = spec.num_attention_heads * spec.head_dim
    check_base(read_adapter(write_folder(tmp_path / "own", pair(Q0, spec.hidden_size, query))), spec)
    other = write_folder(tmp_path / "other", pair(Q0, 4096, query), base_model_name_or_path="Qwen/Qwen3-8B")
    with pytest.raises(UsageError, match=r"it names Qwen/Qwen3-8B.*takes 4096"):
        check_base(read_adapter(other), spec)
    deep = write_folder(tmp_path / "deep", pair("model.layers.63.self_attn.q_proj", spec.hidden_size, query))
    with pytest.raises(UsageError, match=f"layer 63, and demo has {spec.num_hidden_layers} layers"):
        check_base(read_adapter(deep), spec)
