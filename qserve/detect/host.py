"""RAM and cores that we may use, by /proc and cgroups (v1, v2, both at once), whichever is tightest.

A container's limit stands in the cgroup of the process or of any of its ancestors; /proc/meminfo knows none of them.
Sources: the kernel's Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/memory.rst.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from qserve.core.hardware import CpuFeatures

__all__ = [
    "HostMemory",
    "cgroup_folders",
    "count_cores",
    "count_numa_nodes",
    "count_physical_cores",
    "integer_in",
    "limit_bytes",
    "meminfo",
    "read_cpu",
    "read_memory",
    "stat_of",
    "text_of",
]

_ROOT = Path("/")


@dataclass(frozen=True)
class HostMemory:
    """RAM after limits: the tightest total, and what can be taken of it now (page cache counts as free)."""

    total_bytes: int
    available_bytes: int


def read_memory(root: Path = _ROOT) -> HostMemory:
    """RAM of /proc/meminfo, cut down by each memory limit on the way from our cgroup to the root."""
    info = meminfo(root) or _without_proc()
    total_bytes, available_bytes = info["MemTotal"], info.get("MemAvailable", info["MemFree"])
    for folder in cgroup_folders(root, "memory"):
        limit = limit_bytes(folder)
        if limit is None or limit >= info["MemTotal"]:
            continue
        total_bytes = min(total_bytes, limit)
        available_bytes = min(available_bytes, max(0, limit - _working_set_bytes(folder)))
    return HostMemory(total_bytes, available_bytes)


def count_cores(root: Path = _ROOT, affinity: int | None = None) -> int:
    """Cores of our affinity mask (which already lies within the cpuset), cut down by CPU quotas; at least 1.

    A quota of 2.5 cores counts as 2: a third busy thread would only be throttled.
    """
    cores = float(len(_affinity()) if affinity is None else affinity)
    for folder in cgroup_folders(root, "cpu"):
        cores = min(cores, _quota_cores(folder))
    return max(1, int(cores))


def count_physical_cores(root: Path = _ROOT, cores: frozenset[int] | None = None) -> int:
    """Of the cores of our affinity mask, those that are no second thread of another; at least 1.

    A core whose siblings the kernel does not name counts by itself.
    """
    mine = _affinity() if cores is None else cores
    siblings = {
        text_of(root / f"sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list").strip() or str(core)
        for core in mine
    }
    return max(1, len(siblings))


def count_numa_nodes(root: Path = _ROOT) -> int:
    """Memory nodes that have cores; 1 where the kernel names none."""
    lists = (root / "sys/devices/system/node").glob("node[0-9]*/cpulist")
    return max(1, sum(bool(text_of(file).strip()) for file in lists))


def read_cpu(root: Path = _ROOT) -> CpuFeatures:
    """Model name and instruction-set flags of the first core in /proc/cpuinfo ('flags' on x86, 'Features' on Arm)."""
    fields: dict[str, str] = {}
    for line in text_of(root / "proc/cpuinfo").splitlines():
        key, _, value = line.partition(":")
        fields.setdefault(key.strip(), value.strip())
    flags = fields.get("flags", fields.get("Features", ""))
    return CpuFeatures(fields.get("model name", ""), frozenset(flags.split()))


def meminfo(root: Path) -> dict[str, int]:
    """Bytes by name; the kernel writes kB and means KiB."""
    rows = (line.split() for line in text_of(root / "proc/meminfo").splitlines())
    return {row[0].rstrip(":"): int(row[1]) * 1024 for row in rows if len(row) >= 2}


def _without_proc() -> dict[str, int]:
    """On macOS: the RAM, of which a half is taken to be free, as the system tells no such figure by itself."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {"MemTotal": total, "MemFree": total // 2}


def _affinity() -> set[int]:
    """Cores that this process may run on; macOS binds none."""
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))


def cgroup_folders(root: Path, controller: str) -> Iterator[Path]:
    """Our cgroup's folder of `controller` and all above it, those that exist.

    Inside a container the path of /proc/self/cgroup may be the host's, of which only the mount is visible: the walk
    upwards ends there and finds the container's own limits.
    """
    mount = root / "sys/fs/cgroup"
    for line in text_of(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            top = mount / "unified" if (mount / "unified").is_dir() else mount
        elif controller in controllers.split(","):
            top = next((mount / name for name in (controllers, controller) if (mount / name).is_dir()), mount)
        else:
            continue
        folder = top / path.lstrip("/")
        while folder != top:
            yield folder
            folder = folder.parent
        yield top


def limit_bytes(folder: Path) -> int | None:
    """memory.max and memory.high (v2; above 'high' the kernel stalls us) or memory.limit_in_bytes (v1)."""
    found = [integer_in(folder / name) for name in ("memory.max", "memory.high", "memory.limit_in_bytes")]
    return min((value for value in found if value is not None), default=None)


def _working_set_bytes(folder: Path) -> int:
    """What the cgroup holds less its inactive page cache, which the kernel gives up first (as kubelet counts it)."""
    usage = integer_in(folder / "memory.current")
    if usage is None:
        usage = integer_in(folder / "memory.usage_in_bytes") or 0
    stat = stat_of(folder)
    return max(0, usage - stat.get("total_inactive_file", stat.get("inactive_file", 0)))


def stat_of(folder: Path) -> dict[str, int]:
    """memory.stat of a cgroup, by name; with `total_` before it, of all below it as well (v1)."""
    rows = (line.split() for line in text_of(folder / "memory.stat").splitlines())
    return {row[0]: int(row[1]) for row in rows if len(row) == 2}


def _quota_cores(folder: Path) -> float:
    """Cores of cpu.max 'quota period' (v2) or of cpu.cfs_quota_us and cpu.cfs_period_us (v1); infinite without."""
    fields = text_of(folder / "cpu.max").split()
    if len(fields) == 2 and fields[0] != "max":
        return int(fields[0]) / int(fields[1])
    quota, period = integer_in(folder / "cpu.cfs_quota_us"), integer_in(folder / "cpu.cfs_period_us")
    return quota / period if quota and period and quota > 0 else float("inf")


def integer_in(path: Path) -> int | None:
    """The file's number; None where there is no file or it says 'max'."""
    text = text_of(path).strip()
    return int(text) if text.lstrip("-").isdigit() else None


def text_of(path: Path) -> str:
    """The file's text; empty where it can't be read."""
    try:
        return path.read_text()
    except OSError:
        return ""
