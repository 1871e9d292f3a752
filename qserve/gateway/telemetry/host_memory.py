"""RAM of the service's processes without a model, planned and measured."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Sequence
from typing import Any

import psutil

from qserve.core.hardware import HostProcess
from qserve.planner.memory.host import GATEWAY, LARGE_BODIES, WEB_UI
from qserve.worker.process_tree import children_of

__all__ = ["HostMemory"]

# Found by their command lines; the gateway is this process, with its gateway processes.
_RELAYS = "qserve.supervisor.gateway_process"
_MODULES = {"qserve.ui": WEB_UI.name, "qserve.gateway.large_bodies": LARGE_BODIES.name, _RELAYS: GATEWAY.name}
_SOURCE = "resident memory (RSS)"


class HostMemory:
    """Measures the current process (the gateway) and its children that are not workers."""

    def __init__(self, planned: Sequence[HostProcess]) -> None:
        self._planned = planned

    async def documents(self) -> list[dict[str, Any]]:
        """One entry per planned process; `resident_bytes` is None if it does not run."""
        held = await asyncio.to_thread(_held_bytes)
        return [_document(one, held.get(one.name)) for one in self._planned]


def _document(planned: HostProcess, held_bytes: int | None) -> dict[str, Any]:
    return {
        "process": planned.name,
        "planned_bytes": planned.num_bytes,
        "low_bytes": planned.low_bytes,
        "high_bytes": planned.high_bytes,
        "planned_by": planned.source,
        "resident_bytes": held_bytes,
        "difference": None if held_bytes is None else held_bytes / planned.num_bytes - 1,
        "source": _SOURCE,
    }


def _held_bytes() -> dict[str, int]:
    """RSS by process name, summed over processes of one name."""
    held = Counter({GATEWAY.name: psutil.Process().memory_info().rss})
    pids = children_of(os.getpid())
    while pids:
        try:
            child = psutil.Process(pids.pop())
            words = child.cmdline()
            names = [name for module, name in _MODULES.items() if module in words]
            if names:
                held[names[0]] += child.memory_info().rss
            if _RELAYS in words:
                pids += children_of(child.pid)  # its own readers of large bodies
        except psutil.Error:
            continue  # it has just ended
    return dict(held)
