"""The rows of bench/gpu.py in the order of their worth: what is asked of a step process, and how long each may take."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

__all__ = ["GROUPS", "KERNELS", "VARIANTS", "Row", "rows_of"]

GROUPS = ("kernels", "quality", "bf16", "quantized", "service", "pair", "rewards", "offload", "sizes", "fp8")
"""What follows the machine itself: versions, batcher and limits come first in every run."""

KERNELS = ("add_rms_norm", "rotate_and_store", "silu_and_multiply", "attention", "top-p draw", "bf16", "int8", "nf4")
VARIANTS = ("as it runs", "captures off", "library's modules")
"""How steps run: as a service runs them; each kernel launched by itself; by the library's layers."""

_STREAMS, _DECODE = (1, 8, 64), (512, 64)
_PROMPTS = ((1, 512), (8, 512), (1, 4096))
_LONGEST = 4608
_SCHEMES = {"bnb-nf4": "bitsandbytes", "bnb-int8": "bitsandbytes"}
# Random weights in blocks, as the official checkpoints have them, can't be made: a scale a row it is.
_FP8_CC = (8, 0)
# Seconds that a service may take to start, and that a load may take.
_START_S, _BENCH_S = 400, 120


@dataclass(frozen=True)
class Row:
    """One row: `what` names it, `ask` is sent to the step process.

    `most_s`: what it may take before it counts as hung. `needs_s`: what must be left of the budget to begin it.
    `is_of_speed`: left out where another batcher runs than the one that is asked about. `package`: what it needs beside
    torch and transformers. `fresh`: it gets a process of its own, with nothing of others on the card. `least_cc`: the
    compute capability that a card needs for it; without one it runs on a CPU as well.
    """

    group: str
    what: dict[str, Any]
    ask: dict[str, Any]
    most_s: float
    needs_s: float
    is_of_speed: bool = False
    package: str = ""
    fresh: bool = False
    least_cc: tuple[int, int] | None = None


@dataclass(frozen=True)
class _Sizes:
    large: str
    experts: str
    reward_body: str
    small: tuple[str, ...]
    streams: tuple[int, ...]
    decode: tuple[int, int]
    prompts: tuple[tuple[int, int], ...]
    longest: int
    pair_flags: tuple[str, ...]


_REAL = _Sizes(
    "Qwen/Qwen3-32B",
    "Qwen/Qwen3-30B-A3B",
    "Qwen/Qwen3-8B",
    ("Qwen/Qwen3-0.6B", "Qwen/Qwen3-1.7B", "Qwen/Qwen3-4B", "Qwen/Qwen3-8B", "Qwen/Qwen3-14B"),
    _STREAMS,
    _DECODE,
    _PROMPTS,
    _LONGEST,
    ("--quant", "4bit"),
)
_TINY = _Sizes(
    "tiny-untied",
    "tiny-experts",
    "tiny-untied",
    ("tiny-tied",),
    (1, 4),
    (24, 6),
    ((1, 24), (2, 24)),
    96,
    ("--quant", "bf16"),
)


def rows_of(shapes: str, only: tuple[str, ...] = ()) -> list[Row]:
    """Of these groups, or all. `shapes`: "tiny" runs every line in seconds, where the figures mean nothing."""
    sizes = _TINY if shapes == "tiny" else _REAL
    makers = {
        "kernels": _kernels,
        "quality": _quality,
        "bf16": _bf16,
        "quantized": _quantized,
        "service": _service,
        "pair": _pair,
        "rewards": _rewards,
        "offload": _offload,
        "sizes": _small,
        "fp8": _fp8,
    }
    return [row for group in GROUPS if not only or group in only for row in makers[group](sizes)]


def _kernels(sizes: _Sizes) -> Iterator[Row]:
    for kernel in KERNELS:
        ask = {"do": "kernel", "kernel": kernel, "model": sizes.large, "rows": list(sizes.streams)}
        package = "bitsandbytes" if kernel == "nf4" else ""
        yield Row("kernels", {"kernel": kernel}, ask, 90, 8, package=package)


def _quality(sizes: _Sizes) -> Iterator[Row]:
    for scheme in ("bf16", "bnb-nf4") if sizes is _TINY else ("bf16", "bnb-nf4", "bnb-int8", "fp16", "fp32"):
        package = "bitsandbytes" if scheme.startswith("bnb") else ""
        yield Row("quality", {"scheme": scheme}, {"do": "quality", "scheme": scheme}, 90, 8, package=package)


def _bf16(sizes: _Sizes) -> Iterator[Row]:
    yield from _shape("bf16", sizes, sizes.large, "16 bit")
    what = {"model": sizes.large, "scheme": "16 bit"}
    most = {"what": f"{sizes.streams[-1]} streams, drawn", **what}
    yield _decode_row("bf16", most, sizes, sizes.streams[-1], sampled=True)
    for variant in VARIANTS[1:]:
        for streams in sizes.streams[:2]:
            yield _decode_row("bf16", {"what": f"{streams} streams, {variant}", **what}, sizes, streams, variant)
    ask = {"do": "profile", **_of(sizes, sizes.large, "16 bit")}
    yield Row("bf16", {"what": "three steps by kernel", **what}, ask, 60, 15, is_of_speed=True)


def _quantized(sizes: _Sizes) -> Iterator[Row]:
    for scheme, package in _SCHEMES.items() if sizes is _REAL else (("bnb-nf4", "bitsandbytes"),):
        yield from _shape("quantized", sizes, sizes.large, scheme, package)


def _shape(group: str, sizes: _Sizes, model: str, scheme: str, package: str = "") -> Iterator[Row]:
    """Memory, decoding and prompts of a model that is loaded once."""
    what = {"model": model, "scheme": scheme}
    ask = {"do": "memory", **_of(sizes, model, scheme)}
    yield Row(group, {"what": "memory", **what}, ask, 150, 40, package=package)
    for streams in sizes.streams:
        yield _decode_row(group, {"what": f"{streams} streams", **what}, sizes, streams, package=package)
    for count, length in sizes.prompts:
        ask = {"do": "prompts", "count": count, "prompt_len": length, **_of(sizes, model, scheme)}
        named = {"what": f"prompts of {count} × {length}", **what}
        yield Row(group, named, ask, 60, 10, is_of_speed=True, package=package)


def _decode_row(
    group: str,
    what: dict[str, Any],
    sizes: _Sizes,
    streams: int,
    variant: str = VARIANTS[0],
    sampled: bool = False,
    package: str = "",
) -> Row:
    prompt_len, new_tokens = sizes.decode
    ask = {
        "do": "decode",
        "streams": streams,
        "prompt_len": prompt_len,
        "new_tokens": new_tokens,
        "variant": variant,
        "sampled": sampled,
        **_of(sizes, what["model"], what["scheme"]),
    }
    return Row(group, what, ask, 120, 15, is_of_speed=True, package=package)


def _of(sizes: _Sizes, model: str, scheme: str) -> dict[str, Any]:
    return {"model": model, "scheme": scheme, "max_num_seqs": sizes.streams[-1], "max_model_len": sizes.longest}


def _service(sizes: _Sizes) -> Iterator[Row]:
    """Both engines behind the same `qserve up` and the same `qserve bench`."""
    for engine, package in (("vllm", "vllm"), ("transformers", "serve")):
        flags = ["--engine", engine, "--load-format", "dummy", "--quant", "bf16", *_limits(sizes)]
        yield from _up("service", sizes, {"model": sizes.large, "engine": engine}, flags, package)


def _fp8(sizes: _Sizes) -> Iterator[Row]:
    """Made while loading on the transformers engine, dense and with experts; the official shape on vLLM."""
    for model in (sizes.large, sizes.experts):
        for row in _shape("fp8", sizes, model, "fp8"):
            yield replace(row, least_cc=_FP8_CC)
    if sizes is _REAL:
        model = f"{sizes.large}-FP8"
        flags = ["--engine", "vllm", "--load-format", "dummy", *_limits(sizes)]
        yield from _up("fp8", sizes, {"model": model, "engine": "vllm"}, flags, "vllm")


def _limits(sizes: _Sizes) -> list[str]:
    return ["--max-model-len", str(sizes.longest), "--max-num-seqs", str(sizes.streams[-1])]


def _up(group: str, sizes: _Sizes, what: dict[str, Any], flags: list[str], package: str) -> Iterator[Row]:
    start: dict[str, Any] = {
        "do": "service_start",
        "chat": what["model"],
        "reward": None,
        "flags": flags,
        "limit_s": _START_S,
    }
    yield Row(group, {"what": "start", **what}, start, _START_S + 20, 60, package=package, fresh=True)
    most = sizes.streams[-1]
    loads = [(f"{streams} streams", streams, max(4, 2 * streams)) for streams in sizes.streams]
    for named, streams, prompts in (*loads, ("saturated", 2 * most, 3 * most)):
        yield _load(group, {"what": named, **what}, "chat", streams, prompts, sizes.decode)


def _pair(sizes: _Sizes) -> Iterator[Row]:
    """Chat in 4 bits and an 8B reward model on one card, loaded at once."""
    what = {"model": sizes.large, "reward": sizes.reward_body}
    flags = ["--engine", "transformers", "--load-format", "dummy", *sizes.pair_flags, *_limits(sizes)]
    start: dict[str, Any] = {
        "do": "service_start",
        "chat": sizes.large,
        "reward": sizes.reward_body,
        "flags": flags,
        "limit_s": 300,
    }
    yield Row("pair", {"what": "start", **what}, start, 320, 60, package="serve", fresh=True)
    yield _load("pair", {"what": "8 streams of chat", **what}, "chat", 8, 16, sizes.decode)
    yield _load("pair", {"what": "8 streams of rewards", **what}, "reward", 8, 64, sizes.decode)


def _rewards(sizes: _Sizes) -> Iterator[Row]:
    what = {"reward": sizes.reward_body}
    start: dict[str, Any] = {
        "do": "service_start",
        "chat": None,
        "reward": sizes.reward_body,
        "flags": [],
        "limit_s": 200,
    }
    yield Row("rewards", {"what": "start", **what}, start, 220, 45, package="serve", fresh=True)
    for streams in sizes.streams:
        yield _load("rewards", {"what": f"{streams} at once", **what}, "reward", streams, 4 * streams, sizes.decode)


def _load(group: str, what: dict[str, Any], role: str, streams: int, prompts: int, lengths: tuple[int, int]) -> Row:
    ask = {"do": "service_bench", "role": role, "concurrency": streams, "num_prompts": prompts, "lengths": lengths}
    return Row(group, what, ask, _BENCH_S, 10)


def _offload(sizes: _Sizes) -> Iterator[Row]:
    yield Row("offload", {"what": "same tokens with layers offloaded"}, {"do": "offloaded_tokens"}, 90, 20)
    yield Row("offload", {"what": "same tokens over two cards"}, {"do": "two_cards"}, 90, 10)
    model = "tiny-untied" if sizes is _TINY else "Qwen/Qwen3-8B"
    ask = {"do": "offloaded_speed", "model": model}
    yield Row("offload", {"what": "40 % of the layers in RAM"}, ask, 120, 40)


def _small(sizes: _Sizes) -> Iterator[Row]:
    for model in reversed(sizes.small):
        ask = {"do": "memory", **_of(sizes, model, "16 bit")}
        yield Row("sizes", {"what": "memory", "model": model, "scheme": "16 bit"}, ask, 90, 15)
