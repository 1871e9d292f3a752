"""Makes a checkpoint in AWQ's 4 bits with random weights in the shape of Qwen3-8B: to see how such a model starts.

    python bench/random_awq.py --out ~/qwen3-8b-awq-random                       # 6 GB on disk
    python bench/cpu_memory.py --checkpoint ~/qwen3-8b-awq-random --quant awq --rounds 0    # two starts

Numbers of 4 bits are drawn as they are stored, so that nothing is quantized and nothing of 16 GB is ever there.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from transformers import Qwen3Config

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from bench.random_checkpoint import SHAPES, write_tokenizer

# As published in the model's config.json on the hub.
SHAPE: dict[str, Any] = {
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151_936,
    "tie_word_embeddings": False,
}
GROUP, DEVIATION = 128, 0.02
QUANTIZATION = {"quant_method": "awq", "bits": 4, "group_size": GROUP, "zero_point": True, "version": "gemm"}


def words(*shape: int) -> torch.Tensor:
    """Eight random numbers of 4 bits in each."""
    return torch.randint(-(2**31), 2**31 - 1, shape, dtype=torch.int32)


def linear(name: str, out: int, width: int) -> dict[str, torch.Tensor]:
    """Of a deviation near that of a trained layer; numbers lie evenly in 0 to 15, zero points in the middle."""
    scales = torch.full((width // GROUP, out), DEVIATION / 4.6, dtype=torch.float16)
    zeros = torch.full((width // GROUP, out // 8), -(0x77777778), dtype=torch.int32)
    return {f"{name}.qweight": words(width, out // 8), f"{name}.qzeros": zeros, f"{name}.scales": scales}


def layer(index: int, dims: dict[str, Any]) -> dict[str, torch.Tensor]:
    """The tensors of a decoder layer by their names."""
    hidden, inner, size = dims["hidden_size"], dims["intermediate_size"], dims["head_dim"]
    query, key = size * dims["num_attention_heads"], size * dims["num_key_value_heads"]
    shapes = {
        "self_attn.q_proj": (query, hidden),
        "self_attn.k_proj": (key, hidden),
        "self_attn.v_proj": (key, hidden),
        "self_attn.o_proj": (hidden, query),
        "mlp.gate_proj": (inner, hidden),
        "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
    }
    prefix = f"model.layers.{index}"
    found: dict[str, torch.Tensor] = {}
    for name, shape in shapes.items():
        found |= linear(f"{prefix}.{name}", *shape)
    norms = {"input_layernorm": hidden, "post_attention_layernorm": hidden}
    norms |= {"self_attn.q_norm": size, "self_attn.k_norm": size}
    return found | {f"{prefix}.{name}.weight": torch.ones(width).bfloat16() for name, width in norms.items()}


def write(folder: Path, dims: dict[str, Any]) -> None:
    """A file a layer, and one for what is outside of the layers."""
    stop, end = write_tokenizer(folder, dims["vocab_size"])
    config = Qwen3Config(**dims, max_position_embeddings=40_960, eos_token_id=stop, pad_token_id=end, bos_token_id=None)
    about = {**config.to_dict(), "architectures": ["Qwen3ForCausalLM"], "dtype": "bfloat16"}
    (folder / "config.json").write_text(json.dumps({**about, "quantization_config": QUANTIZATION}))
    hidden, table = dims["hidden_size"], (dims["vocab_size"], dims["hidden_size"])
    names = ("model.embed_tokens.weight", *(() if dims["tie_word_embeddings"] else ("lm_head.weight",)))
    outside = {name: torch.empty(table, dtype=torch.bfloat16).normal_(0, DEVIATION) for name in names}
    parts = [outside | {"model.norm.weight": torch.ones(hidden).bfloat16()}]
    weight_map = {}
    for index in range(-1, dims["num_hidden_layers"]):
        tensors = parts.pop() if parts else layer(index, dims)
        file = f"model-{index + 1:05}.safetensors"
        save_file(tensors, folder / file, {"format": "pt"})
        weight_map |= dict.fromkeys(tensors, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--shape", choices=["qwen3-8b", *sorted(SHAPES)], default="qwen3-8b")
    args = parser.parse_args()
    torch.manual_seed(0)
    args.out.mkdir(parents=True, exist_ok=True)
    write(args.out, {**SHAPES, "qwen3-8b": SHAPE}[args.shape])
    print(args.out)


if __name__ == "__main__":
    main()
