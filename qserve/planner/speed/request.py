"""What somebody asks of speed: a load, targets, replicas, prices; and what is known of the machine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from qserve.planner.speed.figures import NO_TARGETS, Targets
from qserve.planner.speed.learned import NOTHING_MEASURED, Measured
from qserve.planner.speed.load import Load

__all__ = ["NO_LOAD", "SpeedRequest"]


@dataclass(frozen=True)
class SpeedRequest:
    """`load` None: one stream, on the layout that memory chose.

    `prices` is the user's table of USD an hour by card, None: configs/prices.toml. `measured` is this machine's.
    """

    load: Load | None = None
    targets: Targets = NO_TARGETS
    replicas: int | None = None
    prices: dict[str, Any] | None = None
    measured: Measured = NOTHING_MEASURED

    @property
    def named_load(self) -> Load:
        """The load, or one stream for every replica."""
        return self.load or Load(concurrency=self.replicas or 1)


NO_LOAD = SpeedRequest()
