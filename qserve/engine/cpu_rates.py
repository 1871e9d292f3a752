"""Measures what this CPU reads and multiplies, as one JSON line: `python -m qserve.engine.cpu_rates`, seconds.

A process of its own, since torch is imported by engines alone; `qserve doctor --measure` starts it.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import torch
from torch import nn

from qserve.model.cpu.activations import with_int8_activations
from qserve.model.cpu.build import library
from qserve.model.cpu.in_turn import in_turn
from qserve.model.cpu.linear import compiled_from
from qserve.model.cpu.matrix import Matrix, codes_matrix, has_int8_activations, int8_matrix, use_own_threads
from qserve.model.packed_linear import PackedLinear

__all__ = ["CpuProbe", "main"]

_READ_BYTES = 256 * 1024**2
_ROWS, _WIDTH = 1024, 2048
_LEAST, _MOST_TIMES, _BLOCK = 3, 8, 64
Inputs = Mapping[int, torch.Tensor]
Pass = Callable[[Inputs], Callable[[], object]]
"""Of inputs by their width: a call that takes them through every layer once."""
Sizes = tuple[tuple[int, int], ...]
# (inputs, outputs), wide and tall: of a model of half a billion weights, and of one of some billions. What begins and
# ends a product is the same in both. Each set is larger than caches.
_SMALL: Sizes = ((1024, 3072), (3072, 1024)) * 13
_LARGE: Sizes = ((2048, 8192), (8192, 2048)) * 3
_FEW_ROWS = (1, 4, 16, 64, 256)


class _Layers:
    """Linear layers of some sizes with random weights, in every way that an engine computes them."""

    def __init__(self, sizes: Sizes, dtype: torch.dtype) -> None:
        self.sizes = sizes
        plain = [nn.Linear(*size, bias=False, dtype=dtype) for size in sizes]
        packed = [PackedLinear(one) if dtype == torch.bfloat16 else one for one in plain]
        compiled = [one.matrix for one in map(compiled_from, plain) if one is not None]
        self.library: Pass = partial(_called_each, packed)
        """As vLLM has them, which packs for oneDNN too."""
        self.is_compiled = len(compiled) == len(plain)
        self.own: Pass = partial(in_turn, compiled) if self.is_compiled else self.library
        """A step of our engine is one call, where its layers are compiled."""

    @cached_property
    def coded(self) -> dict[str, Pass]:
        """By the names of `CpuRates.coded_ps`; none without products of our own."""
        if library() is None:
            return {}
        made = {"int8": [*map(_int8, self.sizes)], "4bit": [*map(_four_bit, self.sizes)]}
        exact = {f"{name}-exact": matrices for name, matrices in made.items() if has_int8_activations()}
        made = {name: [with_int8_activations(one) or one for one in matrices] for name, matrices in made.items()}
        return {name: partial(in_turn, matrices) for name, matrices in (made | exact).items()}


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
        if library() is not None:
            use_own_threads()
        self._small, self._large = _Layers(_SMALL, self.dtype), _Layers(_LARGE, self.dtype)

    def all_rates(self, seconds: float) -> dict[str, Any]:
        """`CpuRates.to_json` of all cores, and of all but one; `seconds` for each of the figures."""
        fewer = self.fewer_rates(seconds) if torch.get_num_threads() > 1 else None
        coded = {
            f"{name}{suffix}": _products(each, layers.sizes, torch.bfloat16, seconds)
            for suffix, layers in (("", self._small), ("-large", self._large))
            for name, each in layers.coded.items()
        }
        return {**self.own_rates(seconds), "coded_ps": coded, "fewer": fewer}

    def own_rates(self, seconds: float) -> dict[str, Any]:
        """Of all cores, as our engine computes; without weights in int8 and 4 bit."""
        rates = self._rates(self._small.own, self._large.own, seconds)
        return {**rates, "is_compiled": self._small.is_compiled}

    def fewer_rates(self, seconds: float) -> dict[str, Any]:
        """Of all cores but one, as vLLM computes."""
        threads = torch.get_num_threads()
        torch.set_num_threads(threads - 1)
        try:
            return self._rates(self._small.library, self._large.library, seconds)
        finally:
            torch.set_num_threads(threads)

    @torch.inference_mode()
    def _rates(self, small: Pass, large: Pass, seconds: float) -> dict[str, Any]:
        read = self._buffer.nbytes / _typical(self._buffer.sum, seconds)
        multiply = _typical(lambda: nn.functional.linear(self._left, self._right), seconds)
        return {
            "read_bytes_per_s": read,
            "gemm_flop_per_s": 2 * _ROWS * _WIDTH * _WIDTH / multiply,
            "cores": torch.get_num_threads(),
            "linear_ps": _products(small, _SMALL, self.dtype, seconds),
            "large_ps": _products(large, _LARGE, self.dtype, seconds),
            "at_unix_s": time.time(),
        }


@torch.inference_mode()
def _products(layers: Pass, sizes: Sizes, dtype: torch.dtype, seconds: float) -> dict[str, float]:
    """Picoseconds a weight, by rows: every layer once, one after the other."""
    found, weights = {}, sum(width * out for width, out in sizes)
    for rows in _FEW_ROWS:
        inputs = {width: torch.randn(rows, width, dtype=dtype) for width, _ in sizes}
        found[str(rows)] = 1e12 * _typical(layers(inputs), seconds) / weights
    return found


def _called_each(layers: Sequence[Any], inputs: Inputs) -> Callable[[], object]:
    """Modules, each called by itself."""
    each = [inputs[layer.in_features] for layer in layers]
    return lambda: [layer(one) for layer, one in zip(layers, each, strict=True)]


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
    parser.add_argument("--seconds", type=float, default=0.25, help="for each figure")
    told = CpuProbe().all_rates(parser.parse_args().seconds)
    sys.stdout.write(json.dumps(told) + "\n")


def _typical(once: Callable[[], object], seconds: float) -> float:
    """Seconds of a call, the median: what a server will find, not the machine's best moment.

    Some calls at least, but where these take many times the `seconds`.
    """
    once()
    taken: list[float] = []
    began_s = time.perf_counter()
    while True:
        start = time.perf_counter()
        once()
        taken.append(time.perf_counter() - start)
        spent = time.perf_counter() - began_s
        if spent >= seconds * (1 if len(taken) >= _LEAST else _MOST_TIMES):
            return statistics.median(taken)


if __name__ == "__main__":
    main()
