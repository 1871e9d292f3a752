"""LoRA adapters over a demo model, in peft's format: with random weights that are large enough to change answers, and
such that say one token whatever they are asked, so that what an engine rounds changes nothing.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from qserve.demo import chat_model_path

ALL = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def write_adapter(
    folder: Path,
    seed: int = 0,
    *,
    base: Path | None = None,
    targets: tuple[str, ...] = ALL,
    rank: int = 4,
    strength: float = 0.05,
    **config: Any,
) -> Path:
    """`config`: further fields of adapter_config.json."""
    base = base or Path(chat_model_path())
    shape = json.loads((base / "config.json").read_text())
    torch.manual_seed(seed)
    tensors = {}
    for layer in range(shape["num_hidden_layers"]):
        for name, (inputs, outputs) in _sizes(shape).items():
            if name in targets:
                part = "mlp" if name in ("gate_proj", "up_proj", "down_proj") else "self_attn"
                where = f"base_model.model.model.layers.{layer}.{part}.{name}"
                tensors[f"{where}.lora_A.weight"] = torch.randn(rank, inputs) * strength
                tensors[f"{where}.lora_B.weight"] = torch.randn(outputs, rank)
    described = {"base_model_name_or_path": str(base), "r": rank, "target_modules": list(targets), **config}
    return _written(folder, tensors, {"lora_alpha": 2 * rank, **described})


def write_saying(folder: Path, token_id: int, *, base: Path | None = None, rank: int = 4) -> Path:
    """An adapter whose model says this token, whatever it is asked.

    Two neurons of the last layer see the same direction with both signs, so that one of them always fires, and write
    the token's row of the embedding.
    """
    base = base or Path(chat_model_path())
    shape = json.loads((base / "config.json").read_text())
    hidden, inner = shape["hidden_size"], shape["intermediate_size"]
    with safe_open(base / "model.safetensors", "pt") as weights:
        row = weights.get_tensor("model.embed_tokens.weight")[token_id].float()
    sizes = ((rank, hidden), (inner, rank), (rank, inner), (hidden, rank))
    sees, fires, picks, writes = map(torch.zeros, sizes)
    sees[0] = torch.randn(hidden, generator=torch.Generator().manual_seed(0))
    fires[0, 0], fires[1, 0] = 30.0, -30.0
    picks[0, :2] = 1.0
    writes[:, 0] = 30.0 * row / row.norm()
    last = shape["num_hidden_layers"] - 1
    where = f"base_model.model.model.layers.{last}.mlp"
    pairs = {"gate_proj": (sees, fires), "up_proj": (sees, fires), "down_proj": (picks, writes)}
    tensors = {
        f"{where}.{name}.lora_{side}.weight": tensor.clone()
        for name, both in pairs.items()
        for side, tensor in zip("AB", both, strict=True)
    }
    config = {"r": rank, "lora_alpha": rank, "target_modules": list(pairs), "layers_to_transform": [last]}
    return _written(folder, tensors, {"base_model_name_or_path": str(base), **config})


def _written(folder: Path, tensors: dict[str, torch.Tensor], config: dict[str, Any]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "adapter_model.safetensors")
    described = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "bias": "none", **config}
    (folder / "adapter_config.json").write_text(json.dumps(described))
    return folder


def _sizes(shape: dict[str, Any]) -> dict[str, tuple[int, int]]:
    hidden, inner = shape["hidden_size"], shape["intermediate_size"]
    query, kv = (shape[name] * shape["head_dim"] for name in ("num_attention_heads", "num_key_value_heads"))
    return {
        "q_proj": (hidden, query),
        "k_proj": (hidden, kv),
        "v_proj": (hidden, kv),
        "o_proj": (query, hidden),
        "gate_proj": (hidden, inner),
        "up_proj": (hidden, inner),
        "down_proj": (inner, hidden),
    }
