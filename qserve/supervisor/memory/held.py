"""What a worker's processes hold of the machine's memory, without asking the worker: it may not answer any more."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from qserve.detect import nvml
from qserve.planner.plan import Plan
from qserve.units import KIB

__all__ = ["held_bytes", "planned_bytes"]

_HELD = re.compile(r"^(?:RssAnon|RssShmem|VmSwap):\s*(\d+) kB", re.MULTILINE)


def held_bytes(pids: Iterable[int], *, shares_gpu: bool, root: Path = Path("/proc")) -> int:
    """What would be free without these processes: not their files, which the kernel can drop.

    `shares_gpu`: with what the driver charges to them. Shared memory counts for each that maps it.
    """
    pids = list(pids)
    on_cards = nvml.bytes_by_process() if shares_gpu else {}
    return sum(_in_ram(root / str(pid) / "status") + on_cards.get(pid, 0) for pid in pids)


def planned_bytes(plan: Plan, *, shares_gpu: bool) -> int:
    """What the plan says that the worker holds of the RAM."""
    offloaded = plan.placement.offloaded_bytes.get("cpu", 0)
    if not (plan.on_cpu or shares_gpu):
        return offloaded
    return sum(device.held_bytes for device in plan.devices) + offloaded


def _in_ram(status: Path) -> int:
    """By the kernel's own count, which takes no lock of the process (`smaps` does, for as long as its pages take)."""
    try:
        return sum(map(int, _HELD.findall(status.read_text()))) * KIB
    except OSError:
        return 0  # it has just ended
