"""An actor that reports a node's hardware and packages before planning, and ends before workers start."""

from __future__ import annotations

import os
import socket
import threading
from dataclasses import dataclass
from pathlib import Path

from qserve.cluster.checkpoints import CheckpointKey, Location, locate_checkpoint
from qserve.cluster.free_port import listening
from qserve.cluster.settings import PortRange
from qserve.core.hardware import Hardware
from qserve.version import __version__

__all__ = ["NodeFacts", "Probe", "is_reachable"]

_GREETING = b"qserve\n"


@dataclass(frozen=True)
class NodeFacts:
    """`packages` are the installed releases of what computes, by name."""

    qserve: str
    packages: dict[str, str]
    hardware: Hardware


class Probe:
    """One for each node."""

    def facts(self) -> NodeFacts:
        """What the machine has. Cards count although this actor asked Ray for none, and may see none."""
        from qserve.detect import detect
        from qserve.detect.packages import Packages

        os.environ.pop("CUDA_VISIBLE_DEVICES", None)
        return NodeFacts(__version__, dict(Packages.installed().versions), detect())

    def find(self, folder: Path, name: str, wanted: CheckpointKey | None) -> Location:
        """See `locate_checkpoint`."""
        return locate_checkpoint(folder, name, wanted)

    def open(self, host: str, ports: PortRange) -> int:
        """Listens on one of `ports` and greets whoever comes, for `is_reachable`. Raises WorkerFailed."""
        listener = listening(host, ports)
        threading.Thread(target=_greet, args=(listener,), daemon=True).start()
        port: int = listener.getsockname()[1]
        return port


def is_reachable(host: str, port: int, timeout_s: float) -> bool:
    """Whether a probe greets from there."""
    try:
        with socket.create_connection((host, port), timeout_s) as connection:
            connection.settimeout(timeout_s)
            return connection.recv(len(_GREETING)) == _GREETING
    except OSError:
        return False


def _greet(listener: socket.socket) -> None:
    while True:
        connection, _ = listener.accept()
        with connection:
            connection.sendall(_GREETING)
