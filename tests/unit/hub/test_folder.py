"""Every way in which a checkpoint folder can be broken has a message of its own, and no traceback."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest

from qserve.core.dimensions import num_parameters
from qserve.core.tensors import Tensor
from qserve.errors import BrokenCheckpoint, ModelNotFound, UnknownArchitecture
from qserve.hub import resolve
from qserve.hub.bounded import read_header

CONFIG = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "hidden_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 4,
    "intermediate_size": 16,
    "vocab_size": 32,
    "max_position_embeddings": 64,
    "tie_word_embeddings": True,
    "dtype": "bfloat16",
}


def write_safetensors(path: Path, shapes: dict[str, tuple[int, ...]], cut: int = 0) -> None:
    header, offset = {}, 0
    for name, shape in shapes.items():
        size = 2
        for edge in shape:
            size *= edge
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header).encode()
    path.write_bytes((struct.pack("<Q", len(text)) + text + b"\0" * offset)[: -cut or None])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    write_safetensors(tmp_path / "model.safetensors", {"model.embed_tokens.weight": (32, 8)})
    return tmp_path


def test_a_whole_folder_is_read_from_its_headers(folder: Path) -> None:
    checkpoint = resolve(str(folder))
    assert checkpoint.folder == folder
    assert checkpoint.spec.head_dim == 4
    assert [(tensor.name, tensor.nbytes) for tensor in checkpoint.counted_tensors] == [
        ("model.embed_tokens.weight", 512)
    ]


def test_a_header_is_read_once_also_for_a_tied_head(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[Path] = []

    def counted(file: Path) -> tuple[Tensor, ...]:
        read.append(file)
        return read_header(file)

    monkeypatch.setattr("qserve.hub.folder.read_header", counted)
    write_safetensors(folder / "model.safetensors", {"model.embed_tokens.weight": (32, 8), "lm_head.weight": (32, 8)})
    assert resolve(str(folder)).spec.tie_word_embeddings
    assert read == [folder / "model.safetensors"]


def test_layers_of_one_shape_are_told_once(folder: Path) -> None:
    names = [f"model.layers.{i}.mlp.experts.{j}.up_proj.weight" for i in range(3) for j in range(4)]
    write_safetensors(folder / "model.safetensors", {**dict.fromkeys(names, (16, 8)), "model.norm.weight": (8,)})
    counted = resolve(str(folder)).counted_tensors
    assert [(tensor.name, tensor.repeat, tensor.nbytes) for tensor in counted] == [
        ("model.layers.0.mlp.experts.0.up_proj.weight", 12, 12 * 256),
        ("model.norm.weight", 1, 16),
    ]


def test_no_such_folder(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match="there is no folder"):
        resolve(str(tmp_path / "nowhere"))


def test_folder_without_config(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match=r"no config\.json"):
        resolve(str(tmp_path))


def test_broken_json(folder: Path) -> None:
    (folder / "config.json").write_text("{")
    with pytest.raises(BrokenCheckpoint, match="not readable JSON"):
        resolve(str(folder))


def test_missing_dimension_is_named(folder: Path) -> None:
    (folder / "config.json").write_text(json.dumps({k: v for k, v in CONFIG.items() if k != "hidden_size"}))
    with pytest.raises(BrokenCheckpoint, match="hidden_size is None"):
        resolve(str(folder))


def test_unknown_architecture_is_named(folder: Path) -> None:
    (folder / "config.json").write_text(json.dumps({**CONFIG, "model_type": "gpt9"}))
    with pytest.raises(UnknownArchitecture, match="'gpt9'"):
        resolve(str(folder))


def test_unknown_head_is_named(folder: Path) -> None:
    (folder / "config.json").write_text(json.dumps({**CONFIG, "architectures": ["Qwen3ForDreaming"]}))
    with pytest.raises(UnknownArchitecture, match="Qwen3ForDreaming"):
        resolve(str(folder))


def test_truncated_data(folder: Path) -> None:
    write_safetensors(folder / "model.safetensors", {"model.embed_tokens.weight": (32, 8)}, cut=100)
    with pytest.raises(BrokenCheckpoint, match="truncated: 100 bytes are missing"):
        resolve(str(folder))


@pytest.mark.parametrize("content", [b"", b"abc", b"\xff" * 16, struct.pack("<Q", 50) + b"{}"])
def test_damaged_header(folder: Path, content: bytes) -> None:
    (folder / "model.safetensors").write_bytes(content)
    with pytest.raises(BrokenCheckpoint, match="header"):
        resolve(str(folder))


def test_header_that_is_no_json(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", 4) + b"nope")
    with pytest.raises(BrokenCheckpoint, match="not a safetensors header"):
        resolve(str(folder))


def test_missing_shard_is_named(folder: Path) -> None:
    index = {"weight_map": {"a": "model.safetensors", "b": "model-2.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(BrokenCheckpoint, match=r"model-2\.safetensors"):
        resolve(str(folder))


def test_a_config_alone_is_planned_from_its_dimensions(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    checkpoint = resolve(str(folder))
    assert checkpoint.tensors is None
    assert r"has no *.safetensors" in checkpoint.messages[0]
    assert checkpoint.parameters == num_parameters(checkpoint.spec)
