"""What a device could do at best, measured now: bytes a second that it reads, operations a second of a matrix product.

    python bench/limits.py --device cpu
    python bench/limits.py --device cuda:0

A decoding step reads every weight once, so tokens a second are bounded by the first; a prompt is large matrix products,
bounded by the second. Both drift on a shared machine: compare only within one run.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from qserve.model.cpu.build import library
from qserve.model.cpu.matrix import bfloat16_matrix, use_own_threads

__all__ = ["Limits", "has_bf16", "measure_limits"]

_GIB = 1024**3


@dataclass(frozen=True)
class Limits:
    """`read_bytes_per_s` by summing (CPU) or copying (card: bytes read and written) a buffer far larger than caches.

    `gemm_flop_per_s` of a 16-bit product: [1024, 4096] times [4096, 4096] on a CPU, by torch or by qserve's kernels,
    whichever is faster (without bf16 instructions torch emulates them), 8192 in all directions on a card.
    `gemv_bytes_per_s`: what the library's own matrix-vector product reads, on weights larger than the caches.
    """

    device: str
    read_bytes_per_s: float
    gemv_bytes_per_s: float
    gemm_flop_per_s: float

    def decode_tokens_per_s(self, streams: int, bytes_per_step: int) -> float:
        """Tokens a second of `streams` sequences whose common step reads `bytes_per_step`."""
        return streams * self.read_bytes_per_s / bytes_per_step

    def prefill_tokens_per_s(self, flop_per_token: float) -> float:
        """Prompt tokens a second at `flop_per_token` operations each."""
        return self.gemm_flop_per_s / flop_per_token


def measure_limits(device: torch.device, size_bytes: int | None = None) -> Limits:
    """Measure `device`; buffers of `size_bytes` [1 GiB on a CPU, 8 GiB or a tenth of what is free on a card]."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        size_bytes = size_bytes or min(8 * _GIB, free // 10)
    size_bytes = size_bytes or _GIB
    return Limits(str(device), _read(device, size_bytes), _gemv(device, size_bytes), _gemm(device, size_bytes))


def _read(device: torch.device, size_bytes: int) -> float:
    buffer = torch.ones(size_bytes // 4, dtype=torch.float32, device=device)
    if device.type != "cuda":
        return buffer.nbytes / best_of(5, device, buffer.sum)
    other = torch.empty_like(buffer)
    return 2 * buffer.nbytes / best_of(10, device, lambda: other.copy_(buffer))


def _gemv(device: torch.device, size_bytes: int) -> float:
    width = 2048 if size_bytes >= 64 * 1024**2 else 128
    weights = [torch.randn(4 * width, width, device=device, dtype=_dtype(device))]
    weights += [weights[0].clone() for _ in range(max(1, size_bytes // 2 // weights[0].nbytes) - 1)]
    row = torch.randn(1, width, device=device, dtype=_dtype(device))

    def once() -> None:
        for weight in weights:
            torch.nn.functional.linear(row, weight)

    return sum(weight.nbytes for weight in weights) / best_of(4, device, once)


def _gemm(device: torch.device, size_bytes: int) -> float:
    rows, inner, outer = (8192, 8192, 8192) if device.type == "cuda" else (1024, 4096, 4096)
    if size_bytes < 64 * 1024**2:
        rows, inner, outer = 128, 256, 256
    left = torch.randn(rows, inner, device=device, dtype=_dtype(device))
    right = torch.randn(outer, inner, device=device, dtype=_dtype(device))
    ways: list[Callable[[], object]] = [lambda: torch.nn.functional.linear(left, right)]
    if device.type == "cpu" and library() is not None and (own := bfloat16_matrix(right)) is not None:
        use_own_threads()
        ways.append(lambda: own.product(left))
    return 2 * rows * inner * outer / min(best_of(8, device, way) for way in ways)


def has_bf16(device: torch.device) -> bool:
    """Whether its matrix units compute in bf16: those of cards before Ampere do not."""
    return device.type != "cuda" or torch.cuda.get_device_capability(device) >= (8, 0)


def _dtype(device: torch.device) -> torch.dtype:
    return torch.bfloat16 if has_bf16(device) else torch.float16


def best_of(times: int, device: torch.device, work: Callable[[], object]) -> float:
    """Seconds of the fastest of `times` calls, after one that does not count."""
    seconds = []
    for _ in range(times + 1):
        synchronize(device)
        start = time.perf_counter()
        work()
        synchronize(device)
        seconds.append(time.perf_counter() - start)
    return min(seconds[1:])


def synchronize(device: torch.device) -> None:
    """Wait for a card; a CPU has nothing outstanding."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda:0" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    print(json.dumps(asdict(measure_limits(torch.device(args.device))), indent=2))


if __name__ == "__main__":
    main()
