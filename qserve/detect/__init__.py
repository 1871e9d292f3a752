"""Detects this machine's hardware: cards by NVML or another maker's tool, RAM and cores by /proc and cgroups."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path

from qserve.core.hardware import Hardware
from qserve.detect import host

__all__ = ["detect"]


def detect(offload_folder: Path | None = None, *, is_described: bool = False) -> Hardware:
    """The machine as we may use it: the cards of CUDA_VISIBLE_DEVICES, RAM and cores within cgroups and affinity.

    `offload_folder`: where weights would be offloaded to; its free space becomes `disk_free_bytes`. `is_described`: its
    cards are put in by the caller, so neither cards nor packages are looked at, which is a tenth of a plan's time.
    Without an NVIDIA driver the tools of other makers are asked, those that are on PATH; `devices` may be empty.
    """
    memory = host.read_memory()
    machine = Hardware(
        devices=(),
        ram_total_bytes=memory.total_bytes,
        ram_available_bytes=memory.available_bytes,
        cpu_cores=host.count_cores(),
        cpu=host.read_cpu(),
        numa_nodes=host.count_numa_nodes(),
        disk_free_bytes=_disk_free_bytes(offload_folder or Path.cwd()),
    )
    if is_described:
        return machine
    from qserve.detect import nvml, smi
    from qserve.detect.packages import Packages, torch_has_cuda

    devices, notes = nvml.read_devices(os.environ, memory)
    installed = Packages.installed().versions
    if not devices and os.environ.get("CUDA_VISIBLE_DEVICES") not in ("", "-1"):  # by which people stay on the CPU
        devices, more = smi.read_devices(os.environ, memory, has_rocm="rocm" in installed.get("torch", ""))
        notes = (*notes, *more)
    packages = frozenset(installed)
    return replace(machine, devices=devices, notes=notes, packages=packages, torch_has_cuda=torch_has_cuda())


def _disk_free_bytes(folder: Path) -> int:
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return shutil.disk_usage(folder).free
