"""What packing and quantizing a weight takes on a CPU: processor nanoseconds a weight, of one thread.

python bench/packing.py                      # every layout; NF4, FP4, LLM.int8, beside bitsandbytes
python bench/packing.py --size 2048 --without-bitsandbytes
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from qserve.model.cpu.matrix import use_own_threads
from qserve.model.cpu.packing import Form, Numbers, packed
from qserve.model.cpu.quantized import four_bit_weight, int8_weight


def words(*shape: int) -> torch.Tensor:
    """Random bits."""
    return torch.randint(-(2**31), 2**31 - 1, shape, dtype=torch.int32)


def packings(size: int) -> dict[str, Callable[[], object]]:
    """One of each layout, of a weight [size, size]."""
    shape, order = (size, size), torch.randperm(size).int()
    numbers = {
        "AWQ": Numbers(words(size, size // 8), Form.OUTPUTS, shape),
        "GPTQ": Numbers(words(size // 8, size).mT, Form.CODES, shape),
        "GPTQ, act order": Numbers(words(size // 8, size).mT, Form.CODES, shape, order),
        "compressed-tensors": Numbers(words(size, size // 8), Form.CODES, shape),
        "bitsandbytes, 4 bit": Numbers(words(size, size // 8), Form.PAIRS, shape),
        "GPTQ, 8 bit": Numbers(words(size // 4, size).mT, Form.BYTES, shape),
        "int8": Numbers(words(size, size // 4).view(torch.int8), Form.SIGNED, shape),
        "bf16": Numbers(torch.randn(shape).bfloat16(), Form.BFLOAT16, shape),
    }
    return {f"pack {name}": partial(packed, one) for name, one in numbers.items()}


def quantizers(weight: torch.Tensor) -> dict[str, Callable[[], object]]:
    """To a packed matrix, by qserve."""
    four_bit = {kind: partial(four_bit_weight, weight, kind, is_nested=True) for kind in ("nf4", "fp4")}
    return {f"quantize to {name}": call for name, call in {**four_bit, "int8": partial(int8_weight, weight)}.items()}


def bitsandbytes(weight: torch.Tensor) -> dict[str, Callable[[], object]]:
    """The same numbers by bitsandbytes, not packed for products."""
    from bitsandbytes import functional

    return {
        "bitsandbytes' NF4": partial(
            functional.quantize_4bit, weight, blocksize=64, quant_type="nf4", compress_statistics=True
        ),
        "bitsandbytes' LLM.int8": lambda: functional.int8_vectorwise_quant(weight.half()),
    }


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=4096)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--without-bitsandbytes", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    use_own_threads()
    weight = (torch.randn(args.size, args.size) / 20).bfloat16()
    calls = packings(args.size) | quantizers(weight)
    calls |= {} if args.without_bitsandbytes else bitsandbytes(weight)
    for name, call in calls.items():
        taken = []
        for _ in range(args.rounds):
            began = time.process_time()
            call()
            taken.append(time.process_time() - began)
        print(f"{name:28}{min(taken) * 1e9 / weight.numel():8.2f} ns a weight", flush=True)


if __name__ == "__main__":
    main()
