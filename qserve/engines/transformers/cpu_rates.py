"""Prints what this CPU reads and multiplies, as a JSON line: `python -m qserve.engines.transformers.cpu_rates`.

A process of its own, since torch is imported by engines alone; `qserve doctor --measure` starts it.
"""

from __future__ import annotations

import argparse
import json
import math
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
from qserve.model.cpu.linear import compiled_from
from qserve.model.cpu.matrix import Matrix, codes_matrix, has_int8_activations, int8_matrix, use_own_threads
from qserve.model.cpu.product_timing import product_sequence
from qserve.model.packed_linear import PackedLinear
from qserve.planner.speed.terms.network import GATE_BYTES, NORM_BYTES, NORM_WITH_SUM_BYTES

__all__ = ["CpuProbe", "main"]

_READ_BYTES = 256 * 1024**2
_ROWS, _WIDTH = 1024, 2048
_LEAST, _MOST_TIMES, _BLOCK = 3, 8, 64
_MANY_ROWS = 16
"""From so many on a product in bf16 without instructions for it waits for arithmetic alone: two layers tell of all, and
more rows take as much longer as they are more (64 of 3 million weights 4.1 times of what 16 do, on a Zen 3)."""
Inputs = Mapping[int, torch.Tensor]
Sizes = tuple[tuple[int, int], ...]
# (inputs, outputs), wide and tall: of a model of half a billion weights, and of one of some billions. What begins and
# ends a product is the same in both. Each set is larger than caches.
_SMALL: Sizes = ((1024, 3072), (3072, 1024)) * 13
_LARGE: Sizes = ((2048, 8192), (8192, 2048)) * 3
_FEW_ROWS = (1, 4, 8, 16, 64, 256)
_PROMPT_ROWS = 1024
"""Of a long prompt, or of sixteen short ones. With tiles (AMX) a row costs a quarter less there than at 256."""
_LARGEST_HEAP_BLOCK = 31 << 20
_UNFUSED_ROWS = (1, 16, 64, 256, 1024)
_PROMPT_LAYERS = 4
"""Enough where products wait for arithmetic: reading a weight is a twentieth of its time."""


@dataclass(frozen=True)
class _Pass:
    """Layers of some sizes in one of the ways that an engine computes them.

    `begins` makes of layers and inputs, by their width, a call that takes the inputs through each layer once.
    `is_emulated`: bf16 without instructions for it, so slow that few layers are enough where there are many rows.
    `takes_prompts`: timed with the rows of a prompt, too.
    """

    layers: Sequence[Any]
    sizes: Sizes
    begins: Callable[[Sequence[Any], Inputs], Callable[[], object]]
    dtype: torch.dtype = torch.bfloat16
    is_emulated: bool = False
    takes_prompts: bool = False

    @torch.inference_mode()
    def products(self, seconds: float) -> dict[str, float]:
        """Picoseconds a weight, by rows: every layer once, one after the other."""
        found = {}
        for rows in (*_FEW_ROWS, *([_PROMPT_ROWS] if self.takes_prompts else [])):
            if self.is_emulated and rows > _MANY_ROWS:
                break
            count = 2 if self.is_emulated and rows == _MANY_ROWS else len(self.layers)
            count = min(count, _PROMPT_LAYERS) if rows == _PROMPT_ROWS else count
            weights = sum(width * out for width, out in self.sizes[:count])
            inputs = {width: torch.randn(rows, width, dtype=self.dtype) for width, _ in self.sizes}
            found[str(rows)] = 1e12 * _typical(self.begins(self.layers[:count], inputs), seconds) / weights
        return found


class _Layers:
    """Linear layers of some sizes with random weights, in every way that an engine computes them."""

    def __init__(self, sizes: Sizes) -> None:
        self.sizes = sizes
        plain = [nn.Linear(*size, bias=False, dtype=torch.bfloat16) for size in sizes]
        has_bf16 = torch.ops.mkldnn._is_mkldnn_bf16_supported()
        packed = [PackedLinear(one) for one in plain] if has_bf16 else plain
        compiled = [one.matrix for one in map(compiled_from, plain) if one is not None]
        self.library = _Pass(packed, sizes, _called_each, is_emulated=not has_bf16, takes_prompts=True)
        """As vLLM has them: packed for oneDNN too, torch's own where that has no products in bf16 (no AVX-512)."""
        self.is_compiled = len(compiled) == len(plain)
        self.own = _Pass(compiled, sizes, product_sequence, takes_prompts=True) if self.is_compiled else self.library
        """A step of our engine is one call, where its layers are compiled."""

    @cached_property
    def fp32(self) -> _Pass:
        """In 32 bit, as both engines compute with --dtype float32."""
        plain = [nn.Linear(*size, bias=False) for size in self.sizes]
        return _Pass(plain, self.sizes, _called_each, torch.float32)

    @cached_property
    def coded(self) -> dict[str, _Pass]:
        """By the names of `CpuRates.coded_ps`; none without products of our own."""
        if library() is None:
            return {}
        made = {"int8": [*map(_int8, self.sizes)], "4bit": [*map(_four_bit, self.sizes)]}
        exact = {f"{name}-exact": matrices for name, matrices in made.items() if has_int8_activations()}
        made = {name: [with_int8_activations(one) or one for one in matrices] for name, matrices in made.items()}
        return {name: _Pass(matrices, self.sizes, product_sequence) for name, matrices in (made | exact).items()}


class _Unfused:
    """Norms and gates of a layer as vLLM runs them on a CPU: single operations of torch, in 32 bit.

    How long these take a token follows no bandwidth: up to some rows they stay in caches.
    """

    def __init__(self) -> None:
        self._width, self._heads, self._gate = 1024, (24, 128), 3072  # of a Qwen3-0.6B
        self._weights = [torch.randn(size, dtype=torch.bfloat16) for size in (self._width, self._heads[1])]
        # Until a block of this size was freed once, glibc gives larger ones than it has seen back to the system after
        # each operation: four times as long. A server's first prompts have done that.
        torch.zeros(_LARGEST_HEAP_BLOCK, dtype=torch.uint8)

    @property
    def bytes_per_token(self) -> int:
        """As planner/speed/terms/network.py counts them: unfused_bytes."""
        return 2 * NORM_WITH_SUM_BYTES * self._width + NORM_BYTES * math.prod(self._heads) + GATE_BYTES * self._gate

    @torch.inference_mode()
    def times(self, seconds: float) -> dict[str, float]:
        """Picoseconds for each byte of one token, by rows."""
        found = {}
        for rows in _UNFUSED_ROWS:
            hidden, heads = torch.randn(rows, self._width), torch.randn(rows, *self._heads)
            inputs = [one.bfloat16() for one in (hidden, hidden, heads, torch.randn(rows, 2 * self._gate))]
            found[str(rows)] = 1e12 * _typical(partial(self._layer, *inputs), seconds) / self.bytes_per_token
        return found

    def _layer(self, hidden: torch.Tensor, residual: torch.Tensor, heads: torch.Tensor, gate: torch.Tensor) -> None:
        for _ in range(2):
            normed = hidden.float() + residual.float()
            residual = normed.bfloat16()
            hidden = self._normed(normed, self._weights[0])
        self._normed(heads.float(), self._weights[1])
        nn.functional.silu(gate[:, : self._gate]) * gate[:, self._gate :]

    def _normed(self, values: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        variance = values.pow(2).mean(dim=-1, keepdim=True)
        return (values * torch.rsqrt(variance + 1e-6)).bfloat16() * weight


@dataclass
class CpuProbe:
    """Buffers that are measured again and again: rates drift on a shared machine.

    `dtype` is that of the large product, whose rate bounds attention: 32 bit where oneDNN has nothing faster.
    """

    dtype: torch.dtype = field(
        default_factory=lambda: torch.bfloat16 if torch.ops.mkldnn._is_mkldnn_bf16_supported() else torch.float32
    )

    def __post_init__(self) -> None:
        self._buffer = torch.ones(_READ_BYTES // 4)
        self._left = torch.randn(_ROWS, _WIDTH, dtype=self.dtype)
        self._right = torch.randn(_WIDTH, _WIDTH, dtype=self.dtype)
        if library() is not None:
            use_own_threads()
        self._small, self._large = _Layers(_SMALL), _Layers(_LARGE)

    def all_rates(self, seconds: float) -> dict[str, Any]:
        """`CpuRates.to_json` of all cores, and of all but one; `seconds` for each of the figures."""
        fewer = self.fewer_rates(seconds) if torch.get_num_threads() > 1 else None
        coded = {
            f"{name}{suffix}": each.products(seconds)
            for suffix, layers in (("", self._small), ("-large", self._large))
            for name, each in layers.coded.items()
        }
        rates = self.own_rates(seconds)
        return {**rates, "coded_ps": {**rates["coded_ps"], **coded}, "fewer": fewer}

    def own_rates(self, seconds: float) -> dict[str, Any]:
        """Of all cores, as our engine computes; without weights in int8 and 4 bit."""
        rates = self._rates(self._small.own, self._large.own, seconds)
        return {**rates, "is_compiled": self._small.is_compiled}

    def fewer_rates(self, seconds: float) -> dict[str, Any]:
        """Of all cores but one, as vLLM computes."""
        threads = torch.get_num_threads()
        torch.set_num_threads(threads - 1)
        try:
            rates = self._rates(self._small.library, self._large.library, seconds)
            return {**rates, "unfused_ps": _Unfused().times(seconds)}
        finally:
            torch.set_num_threads(threads)

    @torch.inference_mode()
    def _rates(self, small: _Pass, large: _Pass, seconds: float) -> dict[str, Any]:
        read = self._buffer.nbytes / _typical(self._buffer.sum, seconds)
        multiply = _typical(lambda: nn.functional.linear(self._left, self._right), seconds)
        return {
            "read_bytes_per_s": read,
            "gemm_flop_per_s": 2 * _ROWS * _WIDTH * _WIDTH / multiply,
            "cores": torch.get_num_threads(),
            "linear_ps": small.products(seconds),
            "large_ps": large.products(seconds),
            "coded_ps": self._in_32_bit(seconds),
            "at_unix_s": time.time(),
        }

    def _in_32_bit(self, seconds: float) -> dict[str, dict[str, float]]:
        """Where bf16 has no instructions of oneDNN's, so that somebody computes in 32 bit instead."""
        if self.dtype != torch.float32:
            return {}
        return {"fp32": self._small.fp32.products(seconds), "fp32-large": self._large.fp32.products(seconds)}


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
    rates = CpuProbe().all_rates(parser.parse_args().seconds)
    sys.stdout.write(json.dumps(rates) + "\n")


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
