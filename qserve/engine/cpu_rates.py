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
from functools import partial
from typing import Any

import torch
from torch import nn

from qserve.model.cpu.activations import with_int8_activations
from qserve.model.cpu.build import library
from qserve.model.cpu.linear import compiled_from
from qserve.model.cpu.matrix import Matrix, codes_matrix, has_int8_activations, int8_matrix, use_own_threads
from qserve.model.packed_linear import PackedLinear

__all__ = ["CpuProbe", "main"]

_READ_BYTES = 256 * 1024**2
_ROWS, _WIDTH = 1024, 2048
_LEAST, _BLOCK = 3, 64
_TINY, _CALLS = 64, 200
Product = Callable[[torch.Tensor], torch.Tensor]
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
        self._weights = sum(rows * columns for rows, columns in _SIZES)
        plain = [nn.Linear(*size, bias=False, dtype=self.dtype) for size in _SIZES]
        has_16_bit = self.dtype == torch.bfloat16
        self._library: list[Product] = [PackedLinear(one) if has_16_bit else one for one in plain]
        """As vLLM has them, which packs for oneDNN too."""
        self._own = [compiled_from(one) or packed for one, packed in zip(plain, self._library, strict=True)]
        self._coded: dict[str, list[Product]] = {}
        if library() is not None:
            use_own_threads()
            made = {"int8": [*map(_int8, _SIZES)], "4bit": [*map(_four_bit, _SIZES)]}
            exact = {f"{name}-exact": matrices for name, matrices in made.items() if has_int8_activations()}
            made = {name: [with_int8_activations(one) or one for one in matrices] for name, matrices in made.items()}
            self._coded = {name: [one.product for one in matrices] for name, matrices in (made | exact).items()}
        tiny = compiled_from(nn.Linear(_TINY, _TINY, bias=False, dtype=self.dtype))
        self._call: Product | None = None if tiny is None else tiny.matrix.product
        """A product that takes the time of its call alone."""

    def all_rates(self, seconds: float, with_codes: bool = True) -> dict[str, Any]:
        """`CpuRates.to_json` of all cores, and of all but one; `seconds` for each of the figures.

        `with_codes`: of weights in int8 and 4 bit, too.
        """
        threads = torch.get_num_threads()
        fewer = None
        if threads > 1:
            torch.set_num_threads(threads - 1)
            try:
                fewer = self._rates(threads - 1, self._library, {}, seconds)
            finally:
                torch.set_num_threads(threads)
        coded = self._coded if with_codes else {}
        return {**self._rates(threads, self._own, coded, seconds, self._call_s()), "fewer": fewer}

    @torch.inference_mode()
    def _rates(
        self,
        threads: int,
        layers: list[Product],
        coded: dict[str, list[Product]],
        seconds: float,
        call_s: float = 0.0,
    ) -> dict[str, Any]:
        read = self._buffer.nbytes / _typical(self._buffer.sum, seconds)
        multiply = _typical(lambda: nn.functional.linear(self._left, self._right), seconds)
        return {
            "read_bytes_per_s": read,
            "gemm_flop_per_s": 2 * _ROWS * _WIDTH * _WIDTH / multiply,
            "cores": threads,
            "linear_ps": self._products(layers, self.dtype, seconds, call_s),
            "coded_ps": {name: self._products(one, torch.bfloat16, seconds, call_s) for name, one in coded.items()},
            "at_unix_s": time.time(),
        }

    @torch.inference_mode()
    def _call_s(self) -> float:
        """Seconds of a call from Python. Our engine computes all layers of a step in one, so its products have none."""
        call = self._call
        if call is None:
            return 0.0
        inputs = torch.randn(1, _TINY, dtype=self.dtype)
        return _typical(lambda: [call(inputs) for _ in range(_CALLS)], 0.0) / _CALLS

    def _products(
        self, layers: list[Product], dtype: torch.dtype, seconds: float, call_s: float
    ) -> dict[str, float]:  # fmt: skip
        """Picoseconds a weight, by rows: every layer once, one after the other, less `call_s` for each."""

        def once(inputs: dict[int, torch.Tensor]) -> None:
            for layer, (width, _) in zip(layers, _SIZES, strict=True):
                layer(inputs[width])

        found = {}
        for rows in _FEW_ROWS:
            inputs = {width: torch.randn(rows, width, dtype=dtype) for width, _ in _SIZES}
            computing = _typical(partial(once, inputs), seconds) - len(layers) * call_s
            found[str(rows)] = 1e12 * computing / self._weights
        return found


def _int8(size: tuple[int, int]) -> Matrix:
    width, out = size
    return _made(int8_matrix(torch.randint(-127, 128, (out, width), dtype=torch.int8), torch.rand(out)))


def _four_bit(size: tuple[int, int]) -> Matrix:
    width, out = size
    codes = torch.randint(0, 16, (out, width), dtype=torch.uint8)
    return _made(codes_matrix("nf4", codes, torch.linspace(-1, 1, 16), torch.rand(out, width // _BLOCK)))


def _made(matrix: Matrix | None) -> Matrix:
    assert matrix is not None, "these shapes are taken"
    return matrix


def main() -> None:
    """Prints `CpuRates.to_json`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=0.4, help="for each figure")
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
