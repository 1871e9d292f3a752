"""Measured memory of a running vLLM worker, by its own log and /metrics and by the system, with sources."""

from __future__ import annotations

from typing import Any

from qserve.client.metrics import samples_of
from qserve.engines.vllm.launch.log import LogFigures
from qserve.engines.vllm.launch.processes import ProcessFigures

__all__ = ["measured_memory"]

_LOG = "vLLM's log"
_METRICS = "vLLM's /metrics, vllm:cache_config_info"
_NOT_LOGGED = "vLLM's CPU build does not say"
_NOT_PROFILED = "vLLM does not measure it with --kv-cache-memory-bytes"


def measured_memory(
    figures: LogFigures, metrics: str, processes: ProcessFigures, num_devices: int = 1
) -> dict[str, Any]:
    """The document of GET /v1/qserve/memory: bytes per term over all devices, None where nobody measured it.

    Args:
        figures: from the log of the start.
        metrics: text of the engine's GET /metrics.
        processes: of the engine's process tree, now.
        num_devices: ranks; vLLM tells the largest one's bytes, and they are alike.

    """
    cache = cache_config(metrics)
    on_cpu = processes.device_bytes is None and figures.weights_bytes is None
    reported = _number(cache.get("kv_cache_memory_bytes"))
    each = f", × {num_devices} ranks" if num_devices > 1 else ""

    def over_all(num_bytes: float | None) -> int | None:
        return None if num_bytes is None else int(num_bytes) * num_devices

    tokens, times = _number(cache.get("kv_cache_size_tokens")), _number(cache.get("kv_cache_max_concurrency"))
    terms: dict[str, tuple[Any, str]] = {
        "weights_bytes": (over_all(figures.weights_bytes), _NOT_LOGGED if on_cpu else _LOG + each),
        "kv_cache_bytes": (over_all(reported or figures.kv_cache_bytes), (_METRICS if reported else _LOG) + each),
        "kv_cache_tokens": (int(tokens) if tokens else figures.kv_cache_tokens, _METRICS if tokens else _LOG),
        "max_concurrency": (times or figures.max_concurrency, _METRICS if times else _LOG),
        "activations_bytes": (
            over_all(figures.activations_bytes),
            _LOG + each if figures.activations_bytes else _NOT_PROFILED,
        ),
        "cuda_graphs_bytes": (over_all(figures.cuda_graphs_bytes), "no card" if on_cpu else _LOG + each),
        "resident_bytes": (
            processes.resident_bytes,
            f"sum of proportional set sizes of {processes.num_processes} processes (psutil pss)",
        ),
        "unique_bytes": (processes.unique_bytes, f"sum over {processes.num_processes} processes (psutil uss)"),
        "device_bytes": (_devices(processes), "NVML, per process" if processes.device_bytes else "NVML does not say"),
    }
    return {
        **{name: value for name, (value, _) in terms.items()},
        "engine_version": figures.version,
        "seconds": _seconds(figures),
        "sources": {name: source for name, (_, source) in terms.items()},
    }


def cache_config(metrics: str) -> dict[str, str]:
    """Labels of `vllm:cache_config_info`, the engine's own view of its cache; empty where it is not told."""
    return next((dict(sample.labels) for sample in samples_of(metrics, "vllm:cache_config_info")), {})


def _seconds(figures: LogFigures) -> dict[str, float]:
    """Seconds of the start: by phase of the log, and as the engine counted the parts itself."""
    counted = {
        "loading weights, as counted": figures.weights_seconds,
        "compiling, as counted": figures.compile_seconds,
        "profiling, as counted": figures.profile_seconds,
        "capturing CUDA graphs, as counted": figures.graphs_seconds,
        "whole engine, as counted": figures.engine_seconds,
    }
    return {**figures.phase_seconds, **{name: value for name, value in counted.items() if value is not None}}


def _devices(processes: ProcessFigures) -> list[dict[str, Any]]:
    return [{"name": name, "bytes": used} for name, used in processes.device_bytes or ()]


def _number(text: str | None) -> float | None:
    try:
        return float(text) if text else None
    except ValueError:  # "None"
        return None
