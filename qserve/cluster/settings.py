"""Settings of `qserve up --ray`, and the intervals of leases."""

from __future__ import annotations

from dataclasses import dataclass

from qserve.errors import UsageError

__all__ = ["LEASE_S", "Bounds", "PortRange", "RaySettings"]

LEASE_S = 10.0
"""A worker of which the service has asked nothing for so long is ended by the node: it is cut off, and replaced."""


@dataclass(frozen=True)
class PortRange:
    """Ports of each node that workers may listen on, both ends among them."""

    first: int
    last: int

    @classmethod
    def parse(cls, text: str) -> PortRange:
        """'20000-20999'. Raises UsageError."""
        first, separator, last = text.partition("-")
        numbers = [int(part) if part.isascii() and part.isdigit() else 0 for part in (first, last)]
        if not separator or not 1024 <= numbers[0] <= numbers[1] <= 65535:
            raise UsageError(
                f"--ray-ports {text!r} is not a range of ports from 1024 to 65535; write for example 20000-20999"
            )
        return cls(*numbers)

    def __str__(self) -> str:
        return f"{self.first}-{self.last}"

    def __len__(self) -> int:
        return self.last - self.first + 1


@dataclass(frozen=True)
class Bounds:
    """How many replicas of the chat model run: from `fewest` to `most`, as the load wants; one fewer after a while."""

    fewest: int
    most: int
    down_after_s: float = 180.0

    def __post_init__(self) -> None:
        if self.fewest > self.most:
            raise UsageError(f"--min-replicas {self.fewest} is more than --max-replicas {self.most}; raise the latter")


@dataclass(frozen=True)
class RaySettings:
    """Where the cluster is (`auto`: the one that this machine is a node of), and where its workers may listen."""

    address: str
    ports: PortRange
