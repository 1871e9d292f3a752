"""What this machine has: cards by NVML, RAM and cores by /proc and cgroups. Reads, never changes anything."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from qserve.core.hardware import Hardware
from qserve.detect import host, nvml
from qserve.detect.packages import Packages

__all__ = ["detect"]


def detect(offload_folder: Path | None = None) -> Hardware:
    """The machine as we may use it: the cards of CUDA_VISIBLE_DEVICES, RAM and cores within cgroups and affinity.

    `offload_folder`: where weights would be offloaded to; its free space becomes `disk_free_bytes`.
    No NVIDIA driver is no error: `devices` is then empty.
    """
    memory = host.read_memory()
    devices, notes = nvml.read_devices(os.environ, memory)
    return Hardware(
        devices=devices,
        ram_total_bytes=memory.total_bytes,
        ram_available_bytes=memory.available_bytes,
        cpu_cores=host.count_cores(),
        cpu=host.read_cpu(),
        disk_free_bytes=_disk_free_bytes(offload_folder or Path.cwd()),
        notes=notes,
        packages=frozenset(Packages.installed().versions),
    )


def _disk_free_bytes(folder: Path) -> int:
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return shutil.disk_usage(folder).free
