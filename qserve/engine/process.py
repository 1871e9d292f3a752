"""A worker process and its parent: what it is told, what it tells while it starts, and how it ends with the parent."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from qserve.planner.plan import Plan

__all__ = ["FAILURE", "PHASE", "WorkerSpec", "end_with_parent", "report_failure", "report_phase"]

# A worker tells its parent how its start goes by lines on standard error that begin with these.
PHASE = "qserve-worker phase: "
FAILURE = "qserve-worker failed: "
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class WorkerSpec:
    """What a worker process is told at its start, by a file that only its user can read.

    Attributes:
        folder: the checkpoint on disk.
        models: names it answers to.
        plan: dtype, placement, limits and KV pool.
        socket: where to listen.
        key: what the gateway will present.
    """

    folder: Path
    models: tuple[str, ...]
    plan: Plan
    socket: Path
    key: str = field(repr=False)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON for the file."""
        return {
            "folder": str(self.folder),
            "models": list(self.models),
            "plan": self.plan.to_json(),
            "socket": str(self.socket),
            "key": self.key,
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> WorkerSpec:
        """What `to_json` wrote."""
        return cls(
            Path(data["folder"]), tuple(data["models"]), Plan.from_json(data["plan"]), Path(data["socket"]), data["key"]
        )


def report_phase(name: str) -> None:
    """Tell the parent what the start is at."""
    _tell(f"{PHASE}{name}")


def report_failure(message: str) -> None:
    """Tell the parent, in one line, why the start failed."""
    _tell(f"{FAILURE}{' '.join(message.split())}")


def _tell(line: str) -> None:
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


def end_with_parent() -> None:
    """Have the kernel kill this process when its parent dies, even by SIGKILL (Linux)."""
    parent = os.getppid()
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died between the two lines
        sys.exit(1)
