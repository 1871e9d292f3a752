"""Folders that a service can be started from: config.json and a stand-in tokenizer, and for rewards random weights.

Weights of a reward model are on disk, since its host loads what was trained: one block of random numbers, written over
and over, which takes the seconds that the disk takes.
"""

from __future__ import annotations

import json
import os
import shutil
import struct
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from bench.gpu_steps.machine import config_of
from qserve.core.dimensions import tensors_of
from qserve.core.model_spec import ModelSpec
from qserve.model.dummy import stand_in_tokenizer

__all__ = ["chat_folder", "reward_config", "reward_folder"]

_BLOCK = 32 * 1024**2
_STANDARD_DEVIATION = 0.02


def chat_folder(model: str) -> Path:
    """For `--load-format dummy` on any engine."""
    folder = _scratch() / model.replace("/", "-")
    config = dict(config_of(model))
    if config.get("quantization_config", {}).get("quant_method") == "fp8":  # as the official files have it
        config["quantization_config"] = {"activation_scheme": "dynamic", "fmt": "e4m3", **config["quantization_config"]}
    _fill(folder, config)
    return folder


def reward_config(model: str) -> dict[str, Any]:
    """`model` with a head of one number in the place of its vocabulary's."""
    config = dict(config_of(model))
    architecture = config["architectures"][0].replace("ForCausalLM", "ForSequenceClassification")
    return {**config, "architectures": [architecture], "num_labels": 1, "id2label": {"0": "reward"}, "pad_token_id": 0}


def reward_folder(model: str) -> Path:
    """A reward model over the body of `model`, of random weights in bf16; what was written before is taken again.

    Raises RuntimeError where the disk has no room for it.
    """
    config = reward_config(model)
    folder = _scratch() / f"{model.replace('/', '-')}-reward"
    if (folder / "model.safetensors").exists():
        return folder
    _fill(folder, config)
    tensors = tensors_of(ModelSpec.from_config(config, model))
    needed, free = sum(tensor.nbytes for tensor in tensors), shutil.disk_usage(folder).free
    if needed > 0.95 * free:
        raise RuntimeError(
            f"{model} as a reward model takes {needed / 1e9:.1f} GB in {folder}, and {free / 1e9:.1f} are free"
        )
    header: dict[str, Any] = {}
    end = 0
    for tensor in tensors:
        for name in _names(tensor.name, tensor.repeat, config["num_hidden_layers"]):
            start, end = end, end + tensor.nbytes // tensor.repeat
            header[name] = {"dtype": "BF16", "shape": list(tensor.shape), "data_offsets": [start, end]}
    words = json.dumps(header).encode()
    words += b" " * (-len(words) % 8)
    block = (torch.randn(_BLOCK // 2) * _STANDARD_DEVIATION).bfloat16().view(torch.int16).numpy().tobytes()
    begun = folder / "begun"
    with begun.open("wb") as file:
        file.write(struct.pack("<Q", len(words)) + words)
        for start in range(0, end, _BLOCK):
            file.write(block[: end - start])
    begun.rename(folder / "model.safetensors")
    return folder


def _scratch() -> Path:
    """What bench/gpu.py removes when it ends."""
    return Path(os.environ.get("QSERVE_GPU_SCRATCH") or tempfile.mkdtemp(prefix="qserve-gpu-"))


def _fill(folder: Path, config: Mapping[str, Any]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(dict(config)))
    stand_in_tokenizer(int(config["vocab_size"])).save_pretrained(folder)


def _names(name: str, repeat: int, num_layers: int) -> list[str]:
    """A tensor that stands for those of every layer, under the name of each; two norms share one row of the table."""
    if repeat == 1:
        return [name]
    kinds = [name] if repeat == num_layers else [name, name.replace("input_layernorm", "post_attention_layernorm")]
    return [kind.replace(".0.", f".{layer}.", 1) for kind in kinds for layer in range(num_layers)]
