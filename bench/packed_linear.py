"""Linear layers of a Qwen3 shape, once through as in a decoding step: plain, packed by oneDNN, and our own products.

    python bench/packed_linear.py                        # rows 1, 8 and 128
    python bench/packed_linear.py --head --rows 1 8      # the head alone: hidden size to vocabulary
    python bench/packed_linear.py --kinds packed bfloat16 nf4
    python bench/packed_linear.py --kinds int8 int8-a8 nf4 nf4-a8    # activations exact, and rounded to 8 bits

The weights together are larger than any cache. Kinds take turns, round by round; the median of the milliseconds is
printed, the bytes a second that each reads, billions of multiplications a second, and the median of the ratios to the
first kind. A core of AVX512 does 32 multiplications of bf16 a cycle and 64 of integers of 8 bits.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from random_checkpoint import SHAPES
from torch import nn

from qserve.model.cpu.activations import with_int8_activations
from qserve.model.cpu.matrix import Matrix, bfloat16_matrix, codes_matrix, int8_matrix, use_own_threads
from qserve.model.packed_linear import PackedLinear

Product = Callable[[torch.Tensor], torch.Tensor]
KINDS = ("plain", "packed", "bfloat16", "fp8", "int8", "nf4", "int4", "int8-a8", "nf4-a8", "int4-a8")


def sizes_of(shape: str) -> list[tuple[int, int]]:
    """(in, out) of the seven linear layers of each decoder layer."""
    dims = SHAPES[shape]
    hidden, inner = dims["hidden_size"], dims["intermediate_size"]
    query, kv = (dims[name] * dims["head_dim"] for name in ("num_attention_heads", "num_key_value_heads"))
    layer = [(hidden, query), (hidden, kv), (hidden, kv), (query, hidden)]
    return [*layer, (hidden, inner), (hidden, inner), (inner, hidden)] * dims["num_hidden_layers"]


def matrix_of(kind: str, width: int, out: int) -> Matrix:
    """Random weights in a format of ours; "-a8": with activations that are rounded."""
    if kind.endswith("-a8"):
        rounded = with_int8_activations(matrix_of(kind.removesuffix("-a8"), width, out))
        assert rounded is not None, "this processor multiplies none"
        return rounded
    if kind == "bfloat16":
        made = bfloat16_matrix(torch.randn(out, width, dtype=torch.bfloat16))
    elif kind == "int8":
        made = int8_matrix(torch.randint(-127, 128, (out, width), dtype=torch.int8), torch.rand(out))
    elif kind == "fp8":
        codes = torch.randint(0, 127, (out, width), dtype=torch.uint8)
        values = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
        made = codes_matrix(kind, codes, values, torch.rand(out, width // 128))
    else:
        codes = torch.randint(0, 16, (out, width), dtype=torch.uint8)
        offsets = torch.randn(out, width // 128) if kind == "int4" else None
        blocks = width // (128 if kind == "int4" else 64)
        values = torch.arange(16) - 8.0 if kind == "int4" else torch.linspace(-1, 1, 16) ** 3
        made = codes_matrix(kind, codes, values, torch.rand(out, blocks), offsets)
    assert made is not None
    return made


def layer_of(kind: str, width: int, out: int) -> tuple[Product, int]:
    """(what multiplies, bytes that it reads)."""
    if kind in ("plain", "packed"):
        linear = nn.Linear(width, out, bias=False, dtype=torch.bfloat16)
        return (linear if kind == "plain" else PackedLinear(linear)), linear.weight.nbytes
    matrix = matrix_of(kind, width, out)
    return matrix.product, matrix.code_bytes + matrix.scale_bytes


def pass_seconds(layers: list[tuple[Product, int]], widths: list[int], rows: int) -> float:
    """Every layer once, on `rows` rows of its own width."""
    inputs = {width: torch.randn(rows, width, dtype=torch.bfloat16) for width in set(widths)}
    start = time.perf_counter()
    for (product, _), width in zip(layers, widths, strict=True):
        product(inputs[width])
    return time.perf_counter() - start


@torch.inference_mode()
def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=sorted(SHAPES), default="qwen3-0.6b")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8, 128])
    parser.add_argument("--kinds", choices=KINDS, nargs="+", default=list(KINDS))
    parser.add_argument("--head", action="store_true", help="the head in place of the decoder's layers")
    args = parser.parse_args()
    dims = SHAPES[args.shape]
    sizes = [(dims["hidden_size"], dims["vocab_size"])] if args.head else sizes_of(args.shape)
    widths = [width for width, _ in sizes]
    use_own_threads()
    kinds = {kind: [layer_of(kind, *size) for size in sizes] for kind in args.kinds}
    print(f"{'rows':>5}  " + "".join(f"{kind:>33}" for kind in kinds))
    for rows in args.rows:
        rounds = [
            {kind: pass_seconds(layers, widths, rows) for kind, layers in kinds.items()} for _ in range(args.rounds + 1)
        ][1:]
        cells = []
        for kind, layers in kinds.items():
            seconds = statistics.median(one[kind] for one in rounds)
            ratio = statistics.median(one[args.kinds[0]] / one[kind] for one in rounds)
            num_bytes = sum(size for _, size in layers)
            rate = rows * sum(width * out for width, out in sizes) / seconds / 1e9
            cells.append(f"{1000 * seconds:>9.1f} ms{num_bytes / seconds / 1e9:>5.1f} GB/s{rate:>5.0f} G{ratio:>5.2f}×")
        print(f"{rows:>5}  " + "".join(f"{cell:>33}" for cell in cells))


if __name__ == "__main__":
    main()
