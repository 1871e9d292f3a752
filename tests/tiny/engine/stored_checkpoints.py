"""Checkpoints as quantizers write them, of the demo model: numbers rounded to the nearest, in the real layouts."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from qserve.demo import chat_model_path
from tests.tiny.engine.families import build

__all__ = [
    "AWQ",
    "BLOCK",
    "FP8",
    "GPTQ",
    "INT4",
    "INT8",
    "W8A16",
    "W8A16_CHANNEL",
    "Packer",
    "as_awq",
    "as_fp8",
    "as_gptq",
    "as_int4",
    "as_int8",
    "compressed",
    "gptq_parts",
    "make",
    "make_of",
    "words",
    "write_experts",
]

Packer = Callable[[str, torch.Tensor], dict[str, torch.Tensor]]
BLOCK = 64
_AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


def as_fp8(stem: str, weight: torch.Tensor) -> dict[str, torch.Tensor]:
    """Blocks of 64 × 64, as DeepSeek and Qwen store them with 128."""
    rows, columns = weight.shape
    blocks = weight.float().reshape(rows // BLOCK, BLOCK, columns // BLOCK, BLOCK)
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


def as_int4(stem: str, weight: torch.Tensor, bits: int = 4) -> dict[str, torch.Tensor]:
    """Groups of 64, a word of several: compressed-tensors' pack-quantized, by its own packer."""
    from compressed_tensors.compressors.pack_quantized.helpers import pack_to_int32

    rows, columns = weight.shape
    groups = weight.float().reshape(rows, columns // BLOCK, BLOCK)
    most = (1 << bits - 1) - 1
    scales = groups.abs().amax(2, keepdim=True) / most
    numbers = (groups / scales).round().clamp(-most - 1, most).reshape(rows, columns).to(torch.int8)
    return {
        f"{stem}.weight_packed": pack_to_int32(numbers, bits),
        f"{stem}.weight_scale": scales.squeeze(2).bfloat16(),
        f"{stem}.weight_shape": torch.tensor([rows, columns]),
    }


def words(numbers: torch.Tensor, bits: int, order: tuple[int, ...] | None = None) -> torch.Tensor:
    """[rows, n] to int32 [rows, n · bits / 32]: the number at `order[k]` of a run in the k-th bits."""
    count = 32 // bits
    runs = numbers.reshape(len(numbers), -1, count).to(torch.int64)
    packed = sum(runs[..., index] << (bits * place) for place, index in enumerate(order or range(count)))
    assert isinstance(packed, torch.Tensor)
    return packed.to(torch.int32)  # what is above 2³¹ becomes negative


def gptq_parts(
    weight: torch.Tensor, bits: int, group: int, g_idx: torch.Tensor, is_symmetric: bool, has_low_zeros: bool
) -> dict[str, torch.Tensor]:
    """As AutoGPTQ and GPTQModel store a weight [out, in] whose input i belongs to group g_idx[i] of `group` inputs."""
    out, width = weight.shape
    most = (1 << bits) - 1
    scales, zeros = torch.empty(width // group, out), torch.empty(width // group, out, dtype=torch.int64)
    for g in range(width // group):
        part = weight[:, g_idx == g].float()
        if is_symmetric:
            scales[g], zeros[g] = 2 * part.abs().amax(1) / most, (most + 1) // 2
        else:
            low, high = part.amin(1).clamp(max=0), part.amax(1).clamp(min=0)
            scales[g] = (high - low) / most
            zeros[g] = (-low / scales[g]).round().clamp(1, most).long()
    scales = scales.half()
    numbers = (weight.float().T / scales.float()[g_idx] + zeros[g_idx]).round().clamp(0, most).long()
    return {
        "qweight": words(numbers.T.contiguous(), bits).T.contiguous(),
        "qzeros": words(zeros - int(has_low_zeros), bits),
        "scales": scales,
        "g_idx": g_idx.int(),
    }


def as_gptq(
    stem: str,
    weight: torch.Tensor,
    *,
    bits: int = 4,
    group: int = 64,
    act_order: bool = False,
    is_symmetric: bool = True,
    has_low_zeros: bool = True,
) -> dict[str, torch.Tensor]:
    """AutoGPTQ's first format by default: zeros stored one too low. With `act_order` groups are mixed, and a layer's
    inputs are in the same order in all that read them."""
    width = weight.shape[1]
    group = width if group < 0 else group
    g_idx = torch.arange(width) // group
    if act_order:
        g_idx = g_idx[torch.randperm(width, generator=torch.Generator().manual_seed(width))]
    parts = gptq_parts(weight, bits, group, g_idx, is_symmetric, has_low_zeros)
    return {f"{stem}.{name}": tensor for name, tensor in parts.items()}


def as_awq(stem: str, weight: torch.Tensor, group: int = BLOCK) -> dict[str, torch.Tensor]:
    """AutoAWQ's gemm format with zero points: eight outputs to an int32, in the order that its kernels unpack."""
    out, width = weight.shape
    groups = weight.float().reshape(out, width // group, group)
    low, high = groups.amin(2).clamp(max=0), groups.amax(2).clamp(min=0)
    scales = ((high - low) / 15).half()
    zeros = (-low / scales.float()).round().clamp(0, 15)
    numbers = (groups / scales.float()[..., None] + zeros[..., None]).round().clamp(0, 15).reshape(out, width)
    return {
        f"{stem}.qweight": words(numbers.T.contiguous(), 4, _AWQ_ORDER),
        f"{stem}.qzeros": words(zeros.T.contiguous(), 4, _AWQ_ORDER),
        f"{stem}.scales": scales.T.contiguous(),
    }


def compressed(format_name: str, weights: dict[str, Any], **group: Any) -> dict[str, Any]:
    """What compressed-tensors writes into config.json."""
    return {
        "quant_method": "compressed-tensors",
        "format": format_name,
        "quantization_status": "compressed",
        "ignore": ["lm_head"],
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": {"symmetric": True, **weights}, **group}},
    }


FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [BLOCK, BLOCK]}
INT8 = compressed(
    "int-quantized",
    {"num_bits": 8, "type": "int", "strategy": "channel"},
    input_activations={"num_bits": 8, "type": "int", "symmetric": True, "strategy": "token", "dynamic": True},
)
# Weights alone, as the preset W8A16 writes it: the library packs them like those of 4 bit.
W8A16 = compressed(
    "pack-quantized",
    {"num_bits": 8, "type": "int", "strategy": "group", "group_size": BLOCK},
    input_activations=None,
    output_activations=None,
)
# And as older versions wrote them, like W8A8.
W8A16_CHANNEL = compressed(
    "int-quantized", {"num_bits": 8, "type": "int", "strategy": "channel"}, input_activations=None
)
INT4 = compressed("pack-quantized", {"num_bits": 4, "type": "int", "strategy": "group", "group_size": BLOCK})
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": BLOCK, "sym": True, "desc_act": False}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": BLOCK, "zero_point": True, "version": "gemm"}


def make(folder: Path, pack: Packer, quantization: dict[str, Any], **changes: Any) -> str:
    """The demo with its projections packed, and `changes` in its config.json."""
    return make_of(chat_model_path(), folder, pack, quantization, **changes)


def make_of(source: Path, folder: Path, pack: Packer, quantization: dict[str, Any], **changes: Any) -> str:
    """The same of another checkpoint."""
    shutil.copytree(source, folder)
    tensors: dict[str, torch.Tensor] = {}
    for name, tensor in load_file(folder / "model.safetensors").items():
        linear = name.endswith("_proj.weight")
        tensors |= pack(name.removesuffix(".weight"), tensor) if linear else {name: tensor}
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "quantization_config": quantization, **changes}))
    return str(folder)


def write_experts(folder: Path, width: int = 64) -> Path:
    """A plain checkpoint with experts: random weights, and the demo's tokenizer."""
    build("qwen3-moe", expert_width=width).bfloat16().save_pretrained(folder)
    for file in chat_model_path().glob("token*"):
        shutil.copy(file, folder)
    return folder
