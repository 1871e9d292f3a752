"""Plain against packed linear layers in bf16: all of a Qwen3-0.6B shape, once through, for several numbers of rows.

    python bench/packed_linear.py
    python bench/packed_linear.py --head       # the head alone: hidden size to vocabulary

The weights together are larger than any cache, as in a decoding step. Both kinds take turns; the median of the ratios
is printed, and the bytes a second that each reads.
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch
from random_checkpoint import SHAPES
from torch import nn

from qserve.model.packed_linear import PackedLinear


def make_linears(shape: str) -> list[nn.Linear]:
    """The seven linear layers of each decoder layer."""
    dims = SHAPES[shape]
    hidden, inner = dims["hidden_size"], dims["intermediate_size"]
    query, kv = (dims[name] * dims["head_dim"] for name in ("num_attention_heads", "num_key_value_heads"))
    sizes = [
        (hidden, query),
        (hidden, kv),
        (hidden, kv),
        (query, hidden),
        (hidden, inner),
        (hidden, inner),
        (inner, hidden),
    ]
    return [
        nn.Linear(*size, bias=False, dtype=torch.bfloat16) for _ in range(dims["num_hidden_layers"]) for size in sizes
    ]


def pass_seconds(layers: list[nn.Module], rows: int) -> float:
    """Every layer once, on `rows` rows of its own width."""
    inputs = {layer.in_features: torch.randn(rows, layer.in_features, dtype=torch.bfloat16) for layer in layers}
    start = time.perf_counter()
    for layer in layers:
        layer(inputs[layer.in_features])
    return time.perf_counter() - start


@torch.inference_mode()
def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=sorted(SHAPES), default="qwen3-0.6b")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--head", action="store_true", help="the head in place of the decoder's layers")
    args = parser.parse_args()
    dims = SHAPES[args.shape]
    plain: list[nn.Module] = list(make_linears(args.shape))
    if args.head:
        plain = [nn.Linear(dims["hidden_size"], dims["vocab_size"], bias=False, dtype=torch.bfloat16)]
    packed: list[nn.Module] = [PackedLinear(layer) for layer in plain]
    num_bytes = sum(layer.weight_bytes for layer in packed)
    print(f"{len(plain)} layers, {num_bytes / 1e9:.2f} GB\n{'rows':>5}{'plain':>11}{'packed':>11}{'plain/packed':>14}")
    for rows in (1, 2, 4, 8, 16, 64, 1024):
        pairs = [(pass_seconds(plain, rows), pass_seconds(packed, rows)) for _ in range(args.rounds + 1)][1:]
        ratio = statistics.median(a / b for a, b in pairs)
        speeds = [num_bytes / statistics.median(column) / 1e9 for column in zip(*pairs, strict=True)]
        print(f"{rows:>5}{speeds[0]:>6.1f} GB/s{speeds[1]:>6.1f} GB/s{ratio:>12.2f} ×")


if __name__ == "__main__":
    main()
