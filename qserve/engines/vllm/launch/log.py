"""Reads vLLM's log of a start: its phase, and the figures that it measured. Pure functions.

The same lines in vLLM 0.26 to 0.33, on cards and on the CPU, except for the account of memory, which 0.26 words
differently; a test holds them to the installed engine's own source.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import pairwise

from qserve.engines.vllm.launch.diagnose import clean
from qserve.units import GIB

__all__ = ["LogFigures", "figures_of", "phase_of"]

# The phase that begins with a line. A start passes through them in this order, and skips what it does not need.
_PHASES = (
    ("starting the engine's processes", re.compile("Initializing a V1 LLM engine")),
    ("loading weights", re.compile("Starting to load model")),
    ("making the KV cache", re.compile("Model loading took|Loading weights took")),
    ("compiling", re.compile(r"Starting torch\.compile|Dynamo bytecode transform")),
    ("compiling kernels", re.compile("JIT kernel warmup starting")),
    ("capturing CUDA graphs", re.compile(r"Capturing (?:prefill )?CUDA graphs")),
    ("starting the server", re.compile("Starting vLLM server on|Starting vLLM API server")),
    ("ready", re.compile("Application startup complete")),
)
# "INFO 11-21 08:18:39 [": no year.
_YEAR = timedelta(days=366)  # of the year 2000, which stands in
_TIME = re.compile(r"(?:INFO|WARNING|ERROR) (\d\d-\d\d \d\d:\d\d:\d\d) \[")

_GIB = r"([\d.]+) ?GiB"
_WEIGHTS = re.compile(rf"Model loading took {_GIB}(?: memory)? and ([\d.]+) seconds")
_LOAD = re.compile(r"Loading weights took ([\d.]+) seconds")
_TOKENS = re.compile(r"KV cache size: ([\d,]+) tokens")
# On the line of the tokens since 0.26, on one of its own before.
_CONCURRENCY = re.compile(r"Maximum concurrency for [\d,]+ tokens per request: ([\d.]+)x")
_AVAILABLE = re.compile(rf"Available KV cache memory: {_GIB}")
_GRAPHS = re.compile(rf"Graph capturing finished in ([\d.]+) secs?, took {_GIB}")
_GRAPHS_ESTIMATED = re.compile(rf"Estimated CUDA graph memory: {_GIB}")
_USAGE = re.compile(
    rf"Actual usage is {_GIB} for (?:weight|consumed memory \(weights \+ non-torch\)), {_GIB} for peak activation"
)
_COMPILED = re.compile(r"torch\.compile took ([\d.]+) s in total")
_PROFILED = re.compile(r"Initial profiling/warmup run took ([\d.]+) s")
_ENGINE = re.compile(r"init engine \(profile, create kv cache, warmup model\) took ([\d.]+) s")
_VERSION = re.compile(r"Initializing a V1 LLM engine \(v([\w.+]+)\)")


@dataclass(frozen=True)
class LogFigures:
    """What was read; None where the log does not say. Of several ranks, the one that holds or waits most.

    `activations_bytes` is only logged when vLLM sizes the cache itself, not beside --kv-cache-memory-bytes.
    `phase_seconds`: how long each phase took, to the second, in the order of the start.
    """

    version: str | None = None
    weights_bytes: int | None = None
    kv_cache_bytes: int | None = None
    kv_cache_tokens: int | None = None
    max_concurrency: float | None = None
    activations_bytes: int | None = None
    cuda_graphs_bytes: int | None = None
    cuda_graphs_estimated_bytes: int | None = None
    weights_seconds: float | None = None
    compile_seconds: float | None = None
    profile_seconds: float | None = None
    graphs_seconds: float | None = None
    engine_seconds: float | None = None
    phase_seconds: dict[str, float] = field(default_factory=dict)


def phase_of(line: str) -> str | None:
    """The phase of the start that begins with this line, for people; None where none does."""
    return next((name for name, words in _PHASES if words.search(line)), None)


def figures_of(lines: Iterable[str]) -> LogFigures:
    """Everything that a start's log measured."""
    kept = list(lines)
    text = "\n".join(clean(line) for line in kept)
    usage = _USAGE.search(text)
    tokens = _TOKENS.search(text)
    weights = _groups(_WEIGHTS, text)
    graphs = _groups(_GRAPHS, text)
    version = _VERSION.search(text)
    return LogFigures(
        version=version[1] if version else None,
        weights_bytes=_bytes(max((gib for gib, _ in weights), default=None)),
        kv_cache_bytes=_bytes(min((gib for (gib,) in _groups(_AVAILABLE, text)), default=None)),
        kv_cache_tokens=int(tokens[1].replace(",", "")) if tokens else None,
        max_concurrency=max((times for (times,) in _groups(_CONCURRENCY, text)), default=None),
        activations_bytes=_bytes(float(usage[2])) if usage else None,
        cuda_graphs_bytes=_bytes(max((gib for _, gib in graphs), default=None)),
        cuda_graphs_estimated_bytes=_bytes(max((gib for (gib,) in _groups(_GRAPHS_ESTIMATED, text)), default=None)),
        weights_seconds=_slowest(_LOAD, text),
        compile_seconds=_slowest(_COMPILED, text),
        profile_seconds=_slowest(_PROFILED, text),
        graphs_seconds=max((seconds for seconds, _ in graphs), default=None),
        engine_seconds=_slowest(_ENGINE, text),
        phase_seconds=_phase_seconds(kept),
    )


def _groups(pattern: re.Pattern[str], text: str) -> list[tuple[float, ...]]:
    return [tuple(float(group) for group in found.groups()) for found in pattern.finditer(text)]


def _slowest(pattern: re.Pattern[str], text: str) -> float | None:
    return max((seconds for (seconds,) in _groups(pattern, text)), default=None)


def _bytes(gib: float | None) -> int | None:
    return None if gib is None else round(gib * GIB)


def _phase_seconds(lines: list[str]) -> dict[str, float]:
    """Time between the first lines of the phases; a line without a time has that of the last one with."""
    begins: dict[str, datetime] = {}
    now: datetime | None = None
    for line in lines:
        time = _TIME.search(line)
        now = _moment(time[1]) if time else now
        name = phase_of(line) if begins else "starting vLLM"
        if name is not None and now is not None:
            begins.setdefault(name, now)
    return {name: ((after - begin) % _YEAR).total_seconds() for (name, begin), (_, after) in pairwise(begins.items())}


def _moment(text: str) -> datetime:
    return datetime.strptime(f"2000-{text}", "%Y-%m-%d %H:%M:%S")
