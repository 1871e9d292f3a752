"""What of a gateway is one thing however many processes relay: each default is that of a process alone."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from qserve.gateway.key_brake import KeyBrake
from qserve.gateway.relay.replica_set import replica_sets
from qserve.gateway.relay.replicas import Replicas
from qserve.gateway.relay.upstream import Upstream
from qserve.gateway.telemetry.metrics import GatewayMetrics
from qserve.gateway.web.session import Sessions

__all__ = ["Shared", "exposition_of"]


@dataclass(frozen=True)
class Shared:
    """The parts of `build_gateway` that several processes have in common (`processes/`).

    Attributes:
        replicas: groups workers by their roles; who has a slot with them is decided there.
        brake: on guessing keys.
        sessions: of browsers that signed in.
        metrics: what this process counts.
        exposition: the metrics of all processes as Prometheus text; None: those of this one.
        started_unix_s: told as the time of creation of the models.
    """

    replicas: Callable[[Sequence[Upstream]], Sequence[Replicas]] = replica_sets
    brake: KeyBrake = field(default_factory=KeyBrake)
    sessions: Sessions = field(default_factory=Sessions)
    metrics: GatewayMetrics = field(default_factory=GatewayMetrics)
    exposition: Callable[[], Awaitable[str]] | None = None
    started_unix_s: int = field(default_factory=lambda: int(time.time()))


async def exposition_of(metrics: GatewayMetrics, upstreams: Sequence[Upstream]) -> str:
    """`metrics` as text, with the memory of the workers as it is now."""
    await asyncio.gather(*(upstream.refresh_measured() for upstream in upstreams if upstream.is_ready))
    return metrics.exposition().decode()
