"""How much memory is free right now, and whether processes wait for it. Takes a millisecond.

Free is what the kernel could hand out: page cache counts, as in MemAvailable. (`host.read_memory` is for plans and
counts active page cache as used.) Page cache that is used all the time, as weights in mapped files, can't be told from
other by any counter; that processes wait for pages can: pressure stall information, Documentation/accounting/psi.rst.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path

from qserve.detect.host import cgroup_folders, integer_in, limit_bytes, meminfo, stat_of, text_of

__all__ = ["FreeMemory", "MemoryPool", "read_free_memory"]

_ROOT = Path("/")
_FULL = re.compile(r"^full .*?\bavg10=([\d.]+)", re.MULTILINE)


@dataclass(frozen=True)
class MemoryPool:
    """One memory that processes of this service share: the machine's, or what a cgroup may take of it.

    `swap_free_bytes`: what it may yet put into swap.
    """

    name: str
    total_bytes: int
    available_bytes: int
    swap_free_bytes: int = 0


@dataclass(frozen=True)
class FreeMemory:
    """One look.

    Attributes:
        pools: the machine first, then each cgroup above us that has a limit.
        stalled_share: of the last 10 s, in which all processes of our cgroup that had work waited for memory; of the
            machine's processes where our cgroup is not counted, 0 where the kernel counts nothing.
    """

    pools: tuple[MemoryPool, ...]
    stalled_share: float

    @property
    def machine(self) -> MemoryPool:
        return self.pools[0]


def read_free_memory(root: Path = _ROOT) -> FreeMemory:
    """What is free by /proc and cgroups (v1, v2, both at once). Raises OSError on a system without /proc."""
    info = meminfo(root)
    if "MemAvailable" not in info:
        raise OSError(f"{root / 'proc/meminfo'} has no MemAvailable")
    total_bytes, swap_bytes = info["MemTotal"], info.get("SwapFree", 0)
    available_bytes = min(total_bytes, info["MemAvailable"] + _arc_bytes(root))
    pools = [MemoryPool("machine", total_bytes, available_bytes, swap_bytes)]
    folders = list(cgroup_folders(root, "memory"))
    for folder in folders:
        limit = limit_bytes(folder)
        if limit is not None and limit < total_bytes:
            pools.append(_pool(folder, limit, swap_bytes))
    return FreeMemory(tuple(pools), _stalled_share(root, folders))


def _arc_bytes(root: Path) -> int:
    """What ZFS would give back of its cache, which fills the RAM and is no page cache; 0 without ZFS."""
    rows = (line.split() for line in text_of(root / "proc/spl/kstat/zfs/arcstats").splitlines())
    found = {row[0]: int(row[2]) for row in rows if len(row) == 3 and row[2].isdigit()}
    return max(0, found.get("size", 0) - found.get("c_min", 0))


def _pool(folder: Path, limit: int, swap_bytes: int) -> MemoryPool:
    usage = integer_in(folder / "memory.current")
    if usage is None:
        usage = integer_in(folder / "memory.usage_in_bytes") or 0
    available = max(0, limit - _unreclaimable_bytes(folder, usage))
    return MemoryPool(f"cgroup {folder.name}", limit, available, min(swap_bytes, _swap_bytes(folder, limit, usage)))


def _swap_bytes(folder: Path, limit: int, usage: int) -> int:
    """What the cgroup may yet put into swap, as far as it is counted; v1 counts memory and swap together."""
    most, held = integer_in(folder / "memory.swap.max"), integer_in(folder / "memory.swap.current")
    if most is None and (both := integer_in(folder / "memory.memsw.limit_in_bytes")) is not None:
        most, held = both - limit, (integer_in(folder / "memory.memsw.usage_in_bytes") or 0) - usage
    return sys.maxsize if most is None else max(0, most - (held or 0))


def _unreclaimable_bytes(folder: Path, usage: int) -> int:
    """What a cgroup holds less its page cache and what the kernel can free of its own."""
    stat = stat_of(folder)
    cache = sum(
        stat.get(f"total_{name}", stat.get(name, 0)) for name in ("inactive_file", "active_file", "slab_reclaimable")
    )
    return max(0, usage - cache)


def _stalled_share(root: Path, folders: list[Path]) -> float:
    for file in (*(folder / "memory.pressure" for folder in folders), root / "proc/pressure/memory"):
        found = _FULL.search(text_of(file))
        if found:
            return float(found[1]) / 100
    return 0.0
