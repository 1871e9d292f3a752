"""Measures what this CPU reads and multiplies, as one JSON line: `python -m qserve.engine.cpu_rates`, seconds.

A process of its own, since torch is imported by engines alone; `qserve doctor --measure` starts it.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from qserve.model.packed_linear import PackedLinear

__all__ = ["CpuProbe", "main"]

_READ_BYTES = 256 * 1024**2
_ROWS, _WIDTH = 1024, 2048
_LEAST = 3
# Linear layers of the sizes that a model of half a billion weights has: fused or not, wide or tall. Together they are
# larger than caches.
_SIZES = ((1024, 2048), (2048, 1024), (1024, 3072), (1024, 3072), (3072, 1024)) * 6
_FEW_ROWS = (1, 4, 16, 64, 256)


@dataclass
class CpuProbe:
    """Buffers that are measured again and again: rates drift on a shared machine."""

    dtype: torch.dtype = field(
        default_factory=lambda: torch.bfloat16 if torch.ops.mkldnn._is_mkldnn_bf16_supported() else torch.float32
    )

    def __post_init__(self) -> None:
        self._buffer = torch.ones(_READ_BYTES // 4)
        self._left = torch.randn(_ROWS, _WIDTH, dtype=self.dtype)
        self._right = torch.randn(_WIDTH, _WIDTH, dtype=self.dtype)
        self._layers: list[nn.Module] = []
        for size in _SIZES:
            plain = nn.Linear(*size, bias=False, dtype=self.dtype)
            self._layers.append(PackedLinear(plain) if self.dtype == torch.bfloat16 else plain)
        self._weights = sum(rows * columns for rows, columns in _SIZES)

    @torch.inference_mode()
    def rates(self, threads: int, seconds: float) -> dict[str, Any]:
        """With so many threads, `seconds` for each of the figures: `CpuRates.to_json`, without `fewer`."""
        before = torch.get_num_threads()
        torch.set_num_threads(threads)
        try:
            read = self._buffer.nbytes / _typical(self._buffer.sum, seconds)
            multiply = _typical(lambda: nn.functional.linear(self._left, self._right), seconds)
            linear = {str(rows): 1e12 * self._pass_s(rows, seconds) / self._weights for rows in _FEW_ROWS}
        finally:
            torch.set_num_threads(before)
        return {
            "read_bytes_per_s": read,
            "gemm_flop_per_s": 2 * _ROWS * _WIDTH * _WIDTH / multiply,
            "cores": threads,
            "linear_ps": linear,
            "at_unix_s": time.time(),
        }

    def all_rates(self, seconds: float) -> dict[str, Any]:
        """Of all cores, and of all but one."""
        threads = torch.get_num_threads()
        fewer = self.rates(threads - 1, seconds) if threads > 1 else None
        return {**self.rates(threads, seconds), "fewer": fewer}

    def _pass_s(self, rows: int, seconds: float) -> float:
        inputs = {width: torch.randn(rows, width, dtype=self.dtype) for width, _ in _SIZES}

        def once() -> None:
            for layer, (width, _) in zip(self._layers, _SIZES, strict=True):
                layer(inputs[width])

        return _typical(once, seconds)


def main() -> None:
    """Prints `CpuRates.to_json`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=0.6, help="for each figure")
    told = CpuProbe().all_rates(parser.parse_args().seconds)
    sys.stdout.write(json.dumps(told) + "\n")


def _typical(once: Callable[[], object], seconds: float) -> float:
    """Seconds of a call, the median: what a server will find, not the machine's best moment."""
    once()
    taken: list[float] = []
    ends_s = time.perf_counter() + seconds
    while len(taken) < _LEAST or time.perf_counter() < ends_s:
        start = time.perf_counter()
        once()
        taken.append(time.perf_counter() - start)
    return statistics.median(taken)


if __name__ == "__main__":
    main()
