"""Measures what this CPU reads and multiplies, as one JSON line: `python -m qserve.engine.cpu_rates`, seconds.

A process of its own, since torch is imported by engines alone; `qserve doctor --measure` starts it.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable

import torch

__all__ = ["main"]

_READ_BYTES = 512 * 1024**2
_ROWS, _WIDTH = 1024, 4096
_MEASURED_S, _LEAST = 2.5, 6


def main() -> None:
    """Prints read_bytes_per_s and gemm_flop_per_s: the best of several, as others' work only slows it."""
    buffer = torch.ones(_READ_BYTES // 4)
    read = buffer.nbytes / _best(buffer.sum)
    dtype = torch.bfloat16 if torch.ops.mkldnn._is_mkldnn_bf16_supported() else torch.float32
    row, weight = torch.randn(_ROWS, _WIDTH, dtype=dtype), torch.randn(_WIDTH, _WIDTH, dtype=dtype)
    flop = 2 * _ROWS * _WIDTH * _WIDTH
    gemm = flop / _best(lambda: torch.nn.functional.linear(row, weight))
    sys.stdout.write(json.dumps({"read_bytes_per_s": read, "gemm_flop_per_s": gemm}) + "\n")


def _best(once: Callable[[], object]) -> float:
    """Seconds of the fastest: others' work is seldom there for all of the time."""
    once()
    taken: list[float] = []
    ends_s = time.perf_counter() + _MEASURED_S
    while len(taken) < _LEAST or time.perf_counter() < ends_s:
        start = time.perf_counter()
        once()
        taken.append(time.perf_counter() - start)
    return min(taken)


if __name__ == "__main__":
    main()
