"""Where a worker listens."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

__all__ = ["TcpAddress", "UnixAddress"]


@dataclass(frozen=True)
class UnixAddress:
    """A unix socket. Its folder is private to the user who started qserve."""

    path: Path


@dataclass(frozen=True)
class TcpAddress:
    """A port of a node, for workers of other machines."""

    host: str
    port: int
