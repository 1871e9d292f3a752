"""Checkpoints that somebody quantized already: what transformers makes of each on a CPU, and what it lacks for it."""

from __future__ import annotations

import importlib.util
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from qserve.demo import chat_model_path
from qserve.errors import BrokenCheckpoint, UsageError
from qserve.model.load import LoadedModel
from qserve.model.stored import stored_arguments
from tests.tiny.engine.loading import load_planned, plan_of

# torch's own, on the first import of its compiler.
pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.script_method:DeprecationWarning")

Packer = Callable[[str, torch.Tensor], dict[str, torch.Tensor]]
_BLOCK = 64


def as_fp8(stem: str, weight: torch.Tensor) -> dict[str, torch.Tensor]:
    """Blocks of 64 × 64, as DeepSeek and Qwen store them with 128."""
    rows, columns = weight.shape
    blocks = weight.float().reshape(rows // _BLOCK, _BLOCK, columns // _BLOCK, _BLOCK)
    scales = blocks.abs().amax((1, 3)) / 448
    packed = (blocks / scales[:, None, :, None]).reshape(rows, columns).to(torch.float8_e4m3fn)
    return {f"{stem}.weight": packed, f"{stem}.weight_scale_inv": scales}


def as_int8(stem: str, weight: torch.Tensor) -> dict[str, torch.Tensor]:
    """A scale a row: compressed-tensors' int-quantized."""
    scales = weight.float().abs().amax(1, keepdim=True) / 127
    return {
        f"{stem}.weight": (weight.float() / scales).round().to(torch.int8),
        f"{stem}.weight_scale": scales.bfloat16(),
    }


def as_int4(stem: str, weight: torch.Tensor) -> dict[str, torch.Tensor]:
    """Groups of 64, eight to an int32: compressed-tensors' pack-quantized, by its own packer."""
    from compressed_tensors.compressors.pack_quantized.helpers import pack_to_int32

    rows, columns = weight.shape
    groups = weight.float().reshape(rows, columns // _BLOCK, _BLOCK)
    scales = groups.abs().amax(2, keepdim=True) / 7
    numbers = (groups / scales).round().clamp(-8, 7).reshape(rows, columns).to(torch.int8)
    return {
        f"{stem}.weight_packed": pack_to_int32(numbers, 4),
        f"{stem}.weight_scale": scales.squeeze(2).bfloat16(),
        f"{stem}.weight_shape": torch.tensor([rows, columns]),
    }


def four_bit(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Numbers from 0 to 15 around 8 [in, out], and a scale for each group of 64 [groups, out]."""
    rows, columns = weight.shape
    groups = weight.float().reshape(rows, columns // _BLOCK, _BLOCK)
    scales = groups.abs().amax(2, keepdim=True) / 7
    numbers = ((groups / scales).round() + 8).clamp(0, 15).to(torch.int32).reshape(rows, columns)
    return numbers.T, scales.squeeze(2).T.contiguous().half()


def nibbles(numbers: torch.Tensor, order: tuple[int, ...]) -> torch.Tensor:
    """[…, 8] to […]: the number at `order[k]` in the k-th four bits of an int32."""
    packed = torch.zeros(numbers.shape[:-1], dtype=torch.int32)
    for place, index in enumerate(order):
        packed |= numbers[..., index] << (4 * place)
    return packed


def as_gptq(stem: str, weight: torch.Tensor) -> dict[str, torch.Tensor]:
    """AutoGPTQ's first format: eight inputs to an int32, zeros stored one too low."""
    numbers, scales = four_bit(weight)
    inputs, outputs = numbers.shape
    eights = numbers.reshape(inputs // 8, 8, outputs).transpose(1, 2)
    zeros = torch.full((inputs // _BLOCK, outputs // 8, 8), 7, dtype=torch.int32)
    return {
        f"{stem}.qweight": nibbles(eights, tuple(range(8))),
        f"{stem}.qzeros": nibbles(zeros, tuple(range(8))),
        f"{stem}.scales": scales,
        f"{stem}.g_idx": torch.arange(inputs, dtype=torch.int32) // _BLOCK,
    }


def as_awq(stem: str, weight: torch.Tensor) -> dict[str, torch.Tensor]:
    """AutoAWQ's gemm format: eight outputs to an int32, in the order that its kernels unpack."""
    numbers, scales = four_bit(weight)
    inputs, outputs = numbers.shape
    order = (0, 2, 4, 6, 1, 3, 5, 7)
    zeros = torch.full((inputs // _BLOCK, outputs // 8, 8), 8, dtype=torch.int32)
    return {
        f"{stem}.qweight": nibbles(numbers.reshape(inputs, outputs // 8, 8), order),
        f"{stem}.qzeros": nibbles(zeros, order),
        f"{stem}.scales": scales,
    }


def compressed(format_name: str, weights: dict[str, Any], **group: Any) -> dict[str, Any]:
    """What compressed-tensors writes into config.json."""
    return {
        "quant_method": "compressed-tensors", "format": format_name, "quantization_status": "compressed",
        "ignore": ["lm_head"],
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": {"symmetric": True, **weights}, **group}},
    }  # fmt: skip


FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [_BLOCK, _BLOCK]}
INT8 = compressed(
    "int-quantized",
    {"num_bits": 8, "type": "int", "strategy": "channel"},
    input_activations={"num_bits": 8, "type": "int", "symmetric": True, "strategy": "token", "dynamic": True},
)
INT4 = compressed("pack-quantized", {"num_bits": 4, "type": "int", "strategy": "group", "group_size": _BLOCK})


GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": _BLOCK, "sym": True, "desc_act": False}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": _BLOCK, "zero_point": True, "version": "gemm"}


def make(folder: Path, pack: Packer, quantization: dict[str, Any]) -> str:
    """The demo with its projections packed."""
    shutil.copytree(chat_model_path(), folder)
    tensors: dict[str, torch.Tensor] = {}
    for name, tensor in load_file(folder / "model.safetensors").items():
        linear = name.endswith("_proj.weight")
        tensors |= pack(name.removesuffix(".weight"), tensor) if linear else {name: tensor}
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "quantization_config": quantization}))
    return str(folder)


def mean_kl(plain: LoadedModel, other: LoadedModel) -> float:
    ids = plain.tokenizer("What is 12+30? Sort: 3, 1, 2.", return_tensors="pt").input_ids
    with torch.no_grad():
        expected, got = (one.model(ids).logits.float().log_softmax(-1) for one in (plain, other))
    return float((expected.exp() * (expected - got)).sum(-1).mean())


@pytest.mark.parametrize(
    ("pack", "quantization", "scheme", "most_kl"),
    [(as_fp8, FP8, "fp8", 0.05), (as_int8, INT8, "w8a8", 0.05), (as_int4, INT4, "w4a16", 1.0)],
    ids=["fp8", "w8a8", "w4a16"],
)
def test_it_is_unpacked_while_loading_and_planned_so(
    tmp_path: Path, pack: Packer, quantization: dict[str, Any], scheme: str, most_kl: float
) -> None:
    folder = make(tmp_path / "checkpoint", pack, quantization)
    plan, loaded, plain = plan_of(folder), load_planned(folder), load_planned("demo", "bf16")
    assert plan.quant.scheme == scheme
    projections = {name: p.dtype for name, p in loaded.model.named_parameters() if name.endswith("_proj.weight")}
    assert set(projections.values()) == {torch.bfloat16}
    assert loaded.weights_bytes == pytest.approx(plan.devices[0].weights_bytes, rel=0.03)
    assert 0 < mean_kl(plain, loaded) < most_kl


@pytest.mark.filterwarnings("ignore")  # of the package's own
@pytest.mark.parametrize(("pack", "quantization"), [(as_gptq, GPTQ), (as_awq, AWQ)], ids=["gptq", "awq"])
def test_four_bit_runs_packed_with_gptqmodel(tmp_path: Path, pack: Packer, quantization: dict[str, Any]) -> None:
    """Not among the packages of `make setup`; the test above holds the command that installs it."""
    pytest.importorskip("gptqmodel")
    folder = make(tmp_path / "checkpoint", pack, quantization)
    loaded = load_planned(folder)
    assert loaded.weights_bytes == pytest.approx(plan_of(folder).devices[0].weights_bytes, rel=0.03)
    assert 0 < mean_kl(load_planned("demo", "bf16"), loaded) < 0.2


@pytest.mark.parametrize(("method", "package"), [("awq", "gptqmodel"), ("gptq", "gptqmodel and optimum")])
def test_what_is_missing_is_named_with_the_command(tmp_path: Path, method: str, package: str) -> None:
    if importlib.util.find_spec("gptqmodel"):
        pytest.skip("gptqmodel is installed here")
    folder = make(
        tmp_path / "checkpoint", lambda stem, weight: {f"{stem}.weight": weight}, {"quant_method": method, "bits": 4}
    )
    with pytest.raises(UsageError, match=f"stored as {method} needs {package}.*pip install .*gptqmodel"):
        load_planned(folder)


def test_packed_numbers_without_their_config(tmp_path: Path) -> None:
    """Read as weights, they would be noise; the library only notes that it did not need the scales."""
    folder = Path(make(tmp_path / "checkpoint", as_int8, INT8))
    config = json.loads((folder / "config.json").read_text())
    del config["quantization_config"]
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(BrokenCheckpoint, match=r"I8.*names no quantization"):
        load_planned(str(folder))


def test_block_fp8_without_its_kernels_is_made_16_bit_while_loading(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a card the library would keep it in fp8 and fail in the first forward, after all of it was downloaded."""
    folder = Path(make(tmp_path / "checkpoint", as_fp8, {"quant_method": "fp8", "weight_block_size": [128, 128]}))
    there = {"kernels": False}
    found = importlib.util.find_spec

    def find_spec(name: str, package: str | None = None) -> Any:
        return there["kernels"] or None if name == "kernels" else found(name, package)

    monkeypatch.setattr("qserve.model.stored.importlib.util.find_spec", find_spec)
    plan = plan_of("demo", "bf16")
    assert stored_arguments(folder, plan)["config"].quantization_config["dequantize"] is True
    there["kernels"] = True
    assert stored_arguments(folder, plan) == {}
