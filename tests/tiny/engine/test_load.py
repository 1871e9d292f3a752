"""Checkpoints that can't be loaded: each a BrokenCheckpoint that names what is wrong. Never random weights."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import Qwen3Config, Qwen3ForCausalLM

from bench.random_checkpoint import write_tokenizer
from qserve.core.hardware import Hardware
from qserve.demo import chat_model_path
from qserve.detect import detect
from qserve.errors import BrokenCheckpoint, DoesNotFit
from qserve.hub import resolve
from qserve.model import packed_linear
from qserve.model.checkpoint_errors import check_files, explain
from qserve.model.cpu.linear import CompiledLinear
from qserve.model.load import load
from qserve.model.mapped import MappedFiles
from qserve.planner import Plan, make_plan
from qserve.planner.request import PlanRequest

PACKED = (packed_linear.PackedLinear, CompiledLinear)


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


def test_a_truncated_file(checkpoint: Path, plan: Plan) -> None:
    file = checkpoint / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1000])
    with pytest.raises(BrokenCheckpoint, match="1000 bytes are missing"):
        load(checkpoint, plan)


def test_a_missing_shard(checkpoint: Path, plan: Plan) -> None:
    names = dict.fromkeys(load_file(checkpoint / "model.safetensors"), "model-00001-of-00002.safetensors")
    (checkpoint / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))
    with pytest.raises(BrokenCheckpoint, match="model-00001-of-00002"):
        load(checkpoint, plan)


def test_no_weights_at_all(checkpoint: Path, plan: Plan) -> None:
    (checkpoint / "model.safetensors").unlink()
    with pytest.raises(BrokenCheckpoint, match=r"no \*.safetensors.*--load-format dummy"):
        load(checkpoint, plan)


def test_a_dtype_that_means_nothing(checkpoint: Path, plan: Plan) -> None:
    name = change(checkpoint, "down_proj", torch.zeros(192, 512, dtype=torch.int8))
    with pytest.raises(BrokenCheckpoint, match=rf"{name} as I8.*names no quantization"):
        load(checkpoint, plan)


def test_other_floats_are_cast(checkpoint: Path, plan: Plan) -> None:
    change(checkpoint, "down_proj", torch.zeros(192, 512, dtype=torch.float16))
    assert {tensor.dtype for tensor in load(checkpoint, plan).model.parameters()} == {torch.float32}


def test_a_config_without_head_dim(checkpoint: Path, plan: Plan) -> None:
    """Qwen3's class takes 128 then; the demo has 64. Loaded anyhow, it would speak nonsense."""
    config = json.loads((checkpoint / "config.json").read_text())
    del config["head_dim"]
    (checkpoint / "config.json").write_text(json.dumps(config))
    with pytest.raises(BrokenCheckpoint, match="no head_dim"):
        load(checkpoint, plan)


def test_what_the_library_takes_without_head_dim_is_what_is_planned(checkpoint: Path, plan: Plan) -> None:
    """A model that has the 128 needs no head_dim in its config."""
    config = json.loads((checkpoint / "config.json").read_text())
    del config["head_dim"]
    (checkpoint / "config.json").write_text(json.dumps(config))
    tensors = load_file(checkpoint / "model.safetensors")
    for name, tensor in tensors.items():
        if "self_attn" in name:
            axis = 1 if "o_proj" in name else 0
            tensors[name] = torch.cat([tensor, tensor], axis).contiguous()
    save_file(tensors, checkpoint / "model.safetensors", {"format": "pt"})
    spec = resolve(str(checkpoint)).spec
    assert load(checkpoint, plan).model.model.layers[0].self_attn.head_dim == spec.head_dim == 128


@pytest.mark.parametrize("name", ["", "config.json", "model.safetensors"])
def test_no_right_to_read(name: str) -> None:
    """As another user where the tests run as root, whom no right stops."""
    with tempfile.TemporaryDirectory() as home:
        Path(home).chmod(0o755)
        folder = Path(shutil.copytree(chat_model_path(), Path(home) / "checkpoint"))
        (folder / name).chmod(0)
        user = os.geteuid()
        if user == 0:
            os.seteuid(65534)
        try:
            with pytest.raises(BrokenCheckpoint, match=f"{folder / name} can't be read.*permission denied"):
                check_files(folder)
        finally:
            os.seteuid(user)
            (folder / name).chmod(0o755)


def test_a_full_disk_is_named(tmp_path: Path) -> None:
    """/dev/full is always full. Loading fails with the library's own error around the system's."""
    try:
        try:
            with Path("/dev/full").open("wb", buffering=0) as file:
                file.write(b"0")
        except OSError as error:
            error.filename = "/scratch/offload/model.dat"
            raise RuntimeError("could not offload") from error
    except RuntimeError as error:
        told = explain(error, tmp_path, "the weights")
    assert isinstance(told, DoesNotFit)
    assert "disk is full: /scratch/offload/model.dat" in str(told)


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("[enforce fail] DefaultCPUAllocator: out of memory")])
def test_want_of_memory_is_named(error: Exception, tmp_path: Path) -> None:
    told = explain(error, tmp_path, "the weights")
    assert isinstance(told, DoesNotFit)
    assert "--quant" in str(told)


def resident_of(files: MappedFiles) -> int:
    """Bytes of the mappings that are in this process's memory."""
    begins = {f"{begin:x}-{end:x}" for begin, end in files.ranges}
    resident, inside = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        first = line.split()[0]
        if not first.endswith(":"):
            inside = first in begins
        elif inside and first == "Rss:":
            resident += int(line.split()[1]) * 1024
    return resident


def test_the_file_is_in_memory_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Packing reads every page of the mapped file; what was read is given back. Of a tied weight the head is packed,
    and the embedding stays in the file, of which next to nothing is resident."""
    if not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        pytest.skip("this CPU has no bf16 kernels to pack for")
    monkeypatch.setattr(packed_linear, "_WORTH_PACKING_BYTES", 0)
    folder = tmp_path / "checkpoint"
    config = Qwen3Config(
        hidden_size=1024,
        intermediate_size=4096,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=8,
        head_dim=128,
        vocab_size=16_000,
        tie_word_embeddings=True,
    )
    Qwen3ForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
    write_tokenizer(folder, 16_000)
    plan = make_plan(resolve(str(folder)), replace(detect(), devices=()), PlanRequest(engine="transformers"))
    load(Path(chat_model_path()), plan)  # what the first loading imports is no cost of the second
    loaded = load(folder, plan)
    assert any(isinstance(module, PACKED) for module in loaded.model.modules())
    assert loaded.weights_bytes > 150 * 1024**2
    assert loaded.cost.peak_bytes < 1.15 * loaded.weights_bytes
    assert isinstance(loaded.model.lm_head, PACKED)
    assert resident_of(MappedFiles.of(folder)) < 1024**2
