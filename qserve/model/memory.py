"""Memory beside the weights, as measured: what the system and the driver say of the process."""

from __future__ import annotations

import contextlib
import importlib
import os
from dataclasses import dataclass
from typing import Any

import psutil
import torch

from qserve.model.load_cost import LoadCost, resident_bytes
from qserve.model.mapped import trim_heap
from qserve.model.measured_weights import weights_by_device

__all__ = ["BesideWeights", "memory_beyond_weights"]

# What is outside of torch's allocator and more than this is not one process's context and libraries alone.
_MOST_CONTEXT_BYTES = 1024**3


@dataclass(frozen=True)
class BesideWeights:
    """`activations_bytes` and `runtime_bytes` over all devices, how each was obtained, and the cards' own accounts."""

    terms: dict[str, int]
    sources: dict[str, str]
    cards: list[dict[str, Any]]


def memory_beyond_weights(model: Any, cost: LoadCost, weights_bytes: int, cache_bytes: int = 0) -> BesideWeights:
    """What this process and those that it started hold beside weights and cache, of which `cache_bytes` are in RAM.

    Peaks count from the last `load_cost.reset_peaks`.
    """
    trim_heap()
    cards = [_card(index) for index in _cards(weights_by_device(model))]
    if cards:
        return BesideWeights(_on_cards(cards), _CARD_SOURCES, cards)
    return BesideWeights(_on_host(cost, weights_bytes, cache_bytes), _HOST_SOURCES, [])


_CARD_SOURCES = {
    "activations_bytes": "torch.cuda.max_memory_allocated less memory_allocated, since the worker was ready",
    "runtime_bytes": "memory of the process by NVML (in a container: of the card, while no other program uses it) "
    "less torch.cuda.memory_reserved; 0 where it is not known",
}
_HOST_SOURCES = {
    "activations_bytes": "highest resident memory (VmHWM) since loading, without the weights and the KV cache: buffers "
    "of a step, compiled kernels, free heap; and the resident memory of the processes that read prompts",
    "runtime_bytes": "resident memory (VmRSS) before loading, and what loading left: interpreter, libraries",
}


def _on_host(cost: LoadCost, weights_bytes: int, cache_bytes: int) -> dict[str, int]:
    peak = resident_bytes("VmHWM")
    # A process that had loaded another model before grows into what that one left.
    grown = max(peak - cost.before_bytes - cost.kept_bytes - cache_bytes, peak - resident_bytes(), 0)
    return {
        "activations_bytes": grown + children_bytes(),
        "runtime_bytes": cost.before_bytes + max(0, cost.kept_bytes - weights_bytes),
    }


def children_bytes() -> int:
    """Resident memory of the processes that this one has started."""
    held = 0
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            held += int(child.memory_info().rss)
    return held


def _on_cards(cards: list[dict[str, Any]]) -> dict[str, int]:
    counted = [card for card in cards if card["process_bytes"] is not None]
    return {
        "activations_bytes": sum(card["peak_bytes"] - card["allocated_bytes"] for card in cards),
        "runtime_bytes": sum(max(0, card["process_bytes"] - card["reserved_bytes"]) for card in counted),
    }


def _cards(by_device: dict[str, int]) -> list[int]:
    return sorted(int(name.partition(":")[2] or 0) for name in by_device if name.startswith("cuda"))


def _card(index: int) -> dict[str, Any]:
    """One card: the allocator's account and the driver's, which is None where others are in it as well."""
    properties = torch.cuda.get_device_properties(index)
    free, total = torch.cuda.mem_get_info(index)
    reserved = torch.cuda.memory_reserved(index)
    process, source = _process_bytes(str(properties.uuid), os.getpid())
    if process is None:
        is_alone = total - free - reserved <= _MOST_CONTEXT_BYTES
        process = total - free if is_alone else None
        source = f"cudaMemGetInfo: {'no other process' if is_alone else 'other processes'} on the card"
    return {
        "name": properties.name,
        "total_bytes": total,
        "allocated_bytes": torch.cuda.memory_allocated(index),
        "peak_bytes": torch.cuda.max_memory_allocated(index),
        "reserved_bytes": reserved,
        "process_bytes": process,
        "process_source": source,
    }


def _process_bytes(uuid: str, pid: int) -> tuple[int | None, str]:
    """What the driver charges to this process; None where it does not see our process id (in a container)."""
    nvml = importlib.import_module("pynvml")
    try:
        nvml.nvmlInit()
        try:
            handle = nvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
            running = nvml.nvmlDeviceGetComputeRunningProcesses(handle)
            used = {process.pid: process.usedGpuMemory for process in running}
            return used.get(pid), "NVML, this process"
        finally:
            nvml.nvmlShutdown()
    except nvml.NVMLError:
        return None, ""
