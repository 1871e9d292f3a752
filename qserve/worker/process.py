"""A worker process and its parent: its specification, its messages while it starts, and its end with the parent."""

from __future__ import annotations

import ctypes
import fcntl
import os
import select
import signal
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from qserve.planner.plan import Plan
from qserve.worker.address import TcpAddress, UnixAddress

__all__ = [
    "FAILURE",
    "LIFELINE",
    "NOTE",
    "PHASE",
    "UNKNOWN_STATUS",
    "WorkerSpec",
    "death_of",
    "end_with_parent",
    "end_with_service",
    "report_failure",
    "report_note",
    "report_phase",
]

# A worker tells its parent how its start goes by lines on standard error that begin with these.
PHASE = "qserve-worker phase: "
FAILURE = "qserve-worker failed: "
NOTE = "qserve-worker note: "
LIFELINE = "QSERVE_LIFELINE"
"""Set for a process whose standard input is a pipe that its service holds open: it ends when nobody does any more."""
UNKNOWN_STATUS = 256
"""Stands for the status of a process that another one had started: only its parent is told. No process ends with it."""
_PR_SET_PDEATHSIG = 1
_FOR_MEMORY = " (the kernel does this when memory runs out)"


@dataclass(frozen=True)
class WorkerSpec:
    """What a worker process is told at its start, by a file that only its user can read.

    Attributes:
        folder: the checkpoint on disk.
        models: names it answers to.
        plan: dtype, placement, limits and KV pool.
        socket: where to listen, in a private folder; what else the worker leaves for its supervisor lies beside it.
        tcp: where to listen instead, for a gateway on another machine.
        packed_cache_bytes: what packed weights of all models may take on disk; 0: none are kept.
        key: what the gateway will present.
        load_format: "dummy" makes random weights from config.json alone.
        verify_quant: measure what quantizing while loading costs, against the 16-bit weights.
    """

    folder: Path
    models: tuple[str, ...]
    plan: Plan
    socket: Path
    key: str = field(repr=False)
    load_format: Literal["auto", "dummy"] = "auto"
    verify_quant: bool = False
    tcp: TcpAddress | None = None
    packed_cache_bytes: int = 0

    @property
    def address(self) -> UnixAddress | TcpAddress:
        """Where it listens."""
        return self.tcp or UnixAddress(self.socket)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON for the file."""
        return {
            "folder": str(self.folder),
            "models": list(self.models),
            "plan": self.plan.to_json(),
            "socket": str(self.socket),
            "key": self.key,
            "load_format": self.load_format,
            "verify_quant": self.verify_quant,
            "tcp": None if self.tcp is None else [self.tcp.host, self.tcp.port],
            "packed_cache_bytes": self.packed_cache_bytes,
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> WorkerSpec:
        """What `to_json` wrote."""
        return cls(
            folder=Path(data["folder"]),
            models=tuple(data["models"]),
            plan=Plan.from_json(data["plan"]),
            socket=Path(data["socket"]),
            key=data["key"],
            load_format=data.get("load_format", "auto"),
            verify_quant=data.get("verify_quant", False),
            tcp=TcpAddress(*data["tcp"]) if data.get("tcp") else None,
            packed_cache_bytes=data.get("packed_cache_bytes", 0),
        )


def death_of(returncode: int, *, is_outside: bool = False) -> str:
    """How a worker ended, in words; a negative `returncode` is a signal.

    `is_outside`: it was seen that memory was not the reason.
    """
    if returncode == UNKNOWN_STATUS:
        return "the worker ended (another service had started it, so its status is not known)"
    if returncode < 0:
        name = signal.Signals(-returncode).name
        if returncode == -signal.SIGKILL:
            name += " (by a person or another program: there was memory)" if is_outside else _FOR_MEMORY
        return f"the worker was killed by {name}"
    return f"the worker ended with status {returncode}"


def report_phase(name: str) -> None:
    """Tell the parent what the start is at."""
    _tell(f"{PHASE}{name}")


def report_note(text: str) -> None:
    """Tell the parent, in one line, what the user should know though nothing failed."""
    _tell(f"{NOTE}{' '.join(text.split())}")


def report_failure(message: str) -> None:
    """Tell the parent, in one line, why the start failed."""
    _tell(f"{FAILURE}{' '.join(message.split())}")


def _tell(line: str) -> None:
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


def end_with_parent(number: signal.Signals = signal.SIGKILL, parent: int | None = None) -> None:
    """Have the kernel send `number` to this process when its parent dies, even by SIGKILL (Linux).

    `parent` is the parent's process id where this process was told it: then one that died before this call is noticed.
    """
    parent = parent or os.getppid()
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:  # it died between the two lines
        sys.exit(1)


def end_with_service() -> None:
    """Have the kernel kill this process as soon as no service holds its lifeline, however it ended (Linux).

    Unlike the link to a parent it can be handed over to another service (`qserve up --takeover`). A process that was
    not started by a service has none, and ends with its parent.
    """
    if os.environ.pop(LIFELINE, None) is None:
        end_with_parent()
        return
    # fcntl(2): the kernel signals the owner when the other end of the pipe is closed; nothing is ever written to it.
    fcntl.fcntl(0, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(0, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(0, fcntl.F_SETFL, fcntl.fcntl(0, fcntl.F_GETFL) | os.O_ASYNC)
    if select.select([0], [], [], 0)[0]:  # it was closed before the kernel was told
        sys.exit(1)
