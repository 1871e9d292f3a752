"""Checkpoints that can't be loaded: each a BrokenCheckpoint that names what is wrong. Never random weights."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from qserve.core.hardware import Hardware
from qserve.demo import chat_model_path
from qserve.detect import detect
from qserve.engine.transformers.load import load
from qserve.errors import BrokenCheckpoint
from qserve.hub import resolve
from qserve.planner import Plan, make_plan
from qserve.planner.request import PlanRequest


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return Path(shutil.copytree(chat_model_path(), tmp_path / "checkpoint"))


@pytest.fixture(scope="module")
def plan() -> Plan:
    machine: Hardware = detect()
    return make_plan(resolve("demo"), machine, PlanRequest(engine="transformers", dtype="float32"))


def change(checkpoint: Path, part: str, tensor: torch.Tensor | None) -> str:
    """Replaces the first tensor whose name holds `part`, or drops it; its name."""
    tensors = load_file(checkpoint / "model.safetensors")
    name = next(name for name in tensors if part in name)
    del tensors[name]
    save_file(
        tensors if tensor is None else {**tensors, name: tensor}, checkpoint / "model.safetensors", {"format": "pt"}
    )
    return name


def test_weights_are_counted_and_in_the_plans_dtype(checkpoint: Path, plan: Plan) -> None:
    loaded = load(checkpoint, plan)
    parameters: Any = loaded.model.parameters()
    assert {tensor.dtype for tensor in parameters} == {torch.float32}
    on_disk = sum(tensor.numel() for tensor in load_file(checkpoint / "model.safetensors").values())
    assert 4 * on_disk <= loaded.weights_bytes <= 4 * on_disk + 4096  # tied embeddings once; rope's few numbers


def test_a_missing_tensor(checkpoint: Path, plan: Plan) -> None:
    name = change(checkpoint, "down_proj", None)
    with pytest.raises(BrokenCheckpoint, match=name):
        load(checkpoint, plan)


def test_a_tensor_of_another_shape(checkpoint: Path, plan: Plan) -> None:
    name = change(checkpoint, "down_proj", torch.zeros(4, 4))
    with pytest.raises(BrokenCheckpoint, match=name):
        load(checkpoint, plan)


def test_no_tokenizer(checkpoint: Path, plan: Plan) -> None:
    for file in checkpoint.glob("tokenizer*"):
        file.unlink()
    with pytest.raises(BrokenCheckpoint, match="tokenizer"):
        load(checkpoint, plan)


def test_a_damaged_tokenizer(checkpoint: Path, plan: Plan) -> None:
    (checkpoint / "tokenizer.json").write_text('{"model": {}}')
    with pytest.raises(BrokenCheckpoint, match="tokenizer"):
        load(checkpoint, plan)
