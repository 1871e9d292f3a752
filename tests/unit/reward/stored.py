"""Checkpoint folders that hold headers and zeros: enough to be recognised, written without torch."""

from __future__ import annotations

import json
import math
import struct
from pathlib import Path
from typing import Any

HIDDEN = 64
CONFIG: dict[str, Any] = {
    "architectures": ["Qwen3ForSequenceClassification"],
    "model_type": "qwen3",
    "hidden_size": HIDDEN,
    "intermediate_size": 128,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "vocab_size": 100,
    "max_position_embeddings": 512,
    "num_labels": 1,
}
BODY = {
    "embed_tokens.weight": (100, HIDDEN),
    "layers.0.input_layernorm.weight": (HIDDEN,),
    "layers.0.self_attn.q_proj.weight": (128, HIDDEN),
    "norm.weight": (HIDDEN,),
}


def body(prefix: str = "model.") -> dict[str, tuple[int, ...]]:
    return {f"{prefix}{name}": shape for name, shape in BODY.items()}


def write_safetensors(file: Path, tensors: dict[str, tuple[int, ...]]) -> None:
    header: dict[str, Any] = {}
    end = 0
    for name, shape in tensors.items():
        begin, end = end, end + 4 * math.prod(shape)
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    file.write_bytes(struct.pack("<Q", len(text)) + text + bytes(end))


def write_folder(folder: Path, tensors: dict[str, tuple[int, ...]], tokenizer: bool = True, **config: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIG | config))
    if tokenizer:
        content = {"model": {"vocab": {"a": 0}}, "added_tokens": [{"content": "<extra_0>", "id": 99}]}
        (folder / "tokenizer.json").write_text(json.dumps(content))
    if tensors:
        write_safetensors(folder / "model.safetensors", tensors)
    return folder


def write_adapter(folder: Path, base: str | None, tensors: dict[str, tuple[int, ...]]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "base_model_name_or_path": base}))
    write_safetensors(folder / "adapter_model.safetensors", tensors)
    return folder
