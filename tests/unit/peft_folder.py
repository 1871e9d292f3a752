"""An adapter in peft's format without torch: matrices of zeros."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any


def write_folder(folder: Path, shapes: dict[str, tuple[int, ...]], **config: Any) -> Path:
    """`shapes`: of tensors, by their whole names."""
    header, end = {}, 0
    for name, shape in shapes.items():
        begin = end
        end += 4 * shape[0] * (shape[1] if len(shape) > 1 else 1)
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "adapter_model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + bytes(end))
    described = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": ["q_proj"], "bias": "none", **config}
    (folder / "adapter_config.json").write_text(json.dumps(described))
    return folder


def pair(module: str, inputs: int, outputs: int, rank: int = 4) -> dict[str, tuple[int, ...]]:
    """The tensors of one module."""
    where = f"base_model.model.{module}"
    return {f"{where}.lora_A.weight": (rank, inputs), f"{where}.lora_B.weight": (outputs, rank)}
