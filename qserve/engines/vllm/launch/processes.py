"""Memory of a running engine by the system: its processes, and on cards what NVML attributes to them."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import psutil

__all__ = ["ProcessFigures", "process_figures"]


@dataclass(frozen=True)
class ProcessFigures:
    """Summed over a process and all below it.

    `resident_bytes` is the sum of proportional set sizes: a page that several of them share counts once.
    `unique_bytes` is what would be free if they all ended. `device_bytes` is per card, by name; None where NVML does
    not tell (no card, or a container with process ids of its own).
    """

    num_processes: int
    resident_bytes: int
    unique_bytes: int
    device_bytes: tuple[tuple[str, int], ...] | None = None


def process_figures(pid: int) -> ProcessFigures:
    """Of process `pid` and its children. Processes that end meanwhile, or are not ours to read, are left out."""
    found = [(process.pid, memory) for process in _tree(pid) if (memory := _memory(process)) is not None]
    return ProcessFigures(
        num_processes=len(found),
        resident_bytes=sum(memory.pss for _, memory in found),
        unique_bytes=sum(memory.uss for _, memory in found),
        device_bytes=_device_bytes({child for child, _ in found}),
    )


def _tree(pid: int) -> list[psutil.Process]:
    try:
        root = psutil.Process(pid)
        return [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def _memory(process: psutil.Process) -> Any:
    try:
        return process.memory_full_info()
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return None


def _device_bytes(pids: set[int]) -> tuple[tuple[str, int], ...] | None:
    nvml = importlib.import_module("pynvml")
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:
        return None
    try:
        return tuple(_charged(nvml, pids)) or None
    except nvml.NVMLError:
        return None
    finally:
        nvml.nvmlShutdown()


def _charged(nvml: Any, pids: set[int]) -> Iterator[tuple[str, int]]:
    for index in range(nvml.nvmlDeviceGetCount()):
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        running = nvml.nvmlDeviceGetComputeRunningProcesses(handle)
        used = sum(process.usedGpuMemory or 0 for process in running if process.pid in pids)
        if used:
            name = nvml.nvmlDeviceGetName(handle)
            yield (name.decode() if isinstance(name, bytes) else name), used
