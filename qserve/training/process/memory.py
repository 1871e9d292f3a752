"""Peaks of a phase and sizes of what a trainer holds: the allocator and driver of a card, or the process's own pages.

On a CPU a peak is the kernel's high-water mark of resident pages (VmHWM, which is exact and can be reset), less the
share of pages that other processes map too (RSS less PSS) when it began: libraries, which a run maps before its model.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from qserve.training.process.sharding import held_part

__all__ = ["PeakMemory", "optimizer_bytes", "storage_bytes"]

_KIB = 1024


class PeakMemory:
    """`reset` begins a phase, `peak_bytes` is the most that was held since."""

    def __init__(self, device: str) -> None:
        self.on_card = device == "cuda"
        self.source = "torch's allocator" if self.on_card else "peak resident memory (VmHWM) without shared pages"
        self._shared_bytes = 0 if self.on_card else _shared_bytes()
        self.baseline_bytes = self.held_bytes()
        """Before there was a model: interpreter and libraries; next to nothing on a card."""

    def reset(self) -> None:
        if self.on_card:
            torch.cuda.reset_peak_memory_stats()
            return
        with contextlib.suppress(OSError):  # a kernel without it: peaks are then of the whole run
            Path("/proc/self/clear_refs").write_text("5")

    def peak_bytes(self) -> int:
        if self.on_card:
            return int(torch.cuda.max_memory_allocated())
        return _status("VmHWM") - self._shared_bytes

    def held_bytes(self) -> int:
        return int(torch.cuda.memory_allocated()) if self.on_card else _status("VmRSS") - self._shared_bytes

    def driver_bytes(self) -> int | None:
        """What the driver says of the card, context and caches included; None on a CPU."""
        if not self.on_card:
            return None
        free, total = torch.cuda.mem_get_info()
        return int(total - free)


def _shared_bytes() -> int:
    """RSS less PSS: what of this process's pages counts for others that map them too."""
    found = {"Rss": 0, "Pss": 0}
    for line in Path("/proc/self/smaps_rollup").read_text().splitlines():
        name, _, rest = line.partition(":")
        if name in found:
            found[name] = int(rest.split()[0]) * _KIB
    return found["Rss"] - found["Pss"]


def _status(name: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * _KIB
    return 0


def storage_bytes(tensors: Iterable[torch.Tensor | None]) -> int:
    """Each storage once: tied weights share theirs. Of what is sharded this rank's share."""
    return sum(_storages(tensors).values())


def _storages(tensors: Iterable[torch.Tensor | None]) -> dict[int, int]:
    """Bytes by address."""
    sizes: dict[int, int] = {}
    for tensor in tensors:
        part = None if tensor is None else held_part(tensor)
        if part is not None and part.numel():
            storage = part.untyped_storage()
            sizes[storage.data_ptr()] = storage.nbytes()
    return sizes


def optimizer_bytes(optimizer: Any) -> int:
    """Tensors of its states and, under ZeRO 1 and 2, of its copy of the weights; step counters and their like (a few
    bytes a tensor) do not count.
    """
    optimizer = getattr(optimizer, "optimizer", optimizer)
    states = getattr(optimizer, "state", {})
    tensors = [value for state in states.values() for value in _tensors(state)]
    tensors += getattr(optimizer, "single_partition_of_fp32_groups", [])
    return storage_bytes(tensor for tensor in tensors if tensor.numel() > 1)


def _tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        return [tensor for one in value.values() for tensor in _tensors(one)]
    return []
