"""Makes a checkpoint with random weights in a real shape, so that speed and memory can be measured without a download.

    python bench/random_checkpoint.py --shape qwen3-0.6b --out /tmp/qwen3-0.6b-random

The tokenizer is byte-level and covers the whole vocabulary (ids past the bytes decode to a short word each), so that
every sampled id is text. Nothing such a model says means anything.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

# Dimensions as published in the models' config.json on the hub.
SHAPES: dict[str, dict[str, Any]] = {
    "tiny": {
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "vocab_size": 1024,
        "tie_word_embeddings": True,
    },
    "qwen3-85m": {
        "hidden_size": 512,
        "intermediate_size": 1536,
        "num_hidden_layers": 12,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 64,
        "vocab_size": 100_000,
        "tie_word_embeddings": True,
    },
    "qwen3-0.6b": {
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 151_936,
        "tie_word_embeddings": True,
    },
    "qwen3-1.7b": {
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 151_936,
        "tie_word_embeddings": True,
    },
}


def write_tokenizer(folder: Path, vocab_size: int) -> tuple[int, int]:
    """The tokenizer that `--load-format dummy` uses as well; returns the ids that end an answer and that pad."""
    from qserve.model.dummy import stand_in_tokenizer

    tokenizer = stand_in_tokenizer(vocab_size)
    tokenizer.save_pretrained(folder)
    return tokenizer.eos_token_id, tokenizer.pad_token_id


def write_checkpoint(folder: Path, shape: str, seed: int = 0, dtype: str = "bfloat16") -> Path:
    """A Qwen3ForCausalLM of `shape` with normal(0, 0.02) weights; one that is there is kept. Returns the folder."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    done = folder / "random.json"
    wanted = {"shape": shape, "seed": seed, "dtype": dtype}
    if done.exists() and json.loads(done.read_text()) == wanted:
        return folder
    dims = SHAPES[shape]
    stop, end = write_tokenizer(folder, dims["vocab_size"])
    torch.manual_seed(seed)
    config = Qwen3Config(**dims, max_position_embeddings=40_960, eos_token_id=stop, pad_token_id=end, bos_token_id=None)
    config.dtype = dtype
    torch.set_default_dtype(getattr(torch, dtype))
    try:
        model = Qwen3ForCausalLM(config)
    finally:
        torch.set_default_dtype(torch.float32)
    model.generation_config.eos_token_id = stop
    model.save_pretrained(folder)
    done.write_text(json.dumps(wanted))
    return folder


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=sorted(SHAPES), default="qwen3-0.6b")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float16", "float32"])
    args = parser.parse_args()
    print(write_checkpoint(args.out, args.shape, args.seed, args.dtype))


if __name__ == "__main__":
    main()
