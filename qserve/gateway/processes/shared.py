"""The parts of a gateway that all its processes share; defaults are those of a single process."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from qserve.gateway.background.runs import Runs
from qserve.gateway.key_throttle import KeyThrottle
from qserve.gateway.keys.book import Ledger
from qserve.gateway.relay.replica_set import replica_sets
from qserve.gateway.relay.replicas import Replicas
from qserve.gateway.relay.upstream import Upstream
from qserve.gateway.telemetry.metrics import GatewayMetrics
from qserve.gateway.web.session import Sessions

__all__ = ["Shared", "exposition_of"]


@dataclass(frozen=True)
class Shared:
    """Arguments of `build_gateway` that several processes share (`processes/`).

    Attributes:
        replicas: groups workers by model, and grants slots.
        throttle: of key guessing.
        sessions: of browsers that signed in.
        metrics: what this process counts.
        salt_secret: keeps the cached prompts of keys apart.
        exposition: Prometheus text of all processes; None: of this one.
        started_unix_s: reported as the models' creation time.
        runs: where background responses run; None: in this process.
        ledger: where the use of keys is counted; None: in this process.
    """

    replicas: Callable[[Sequence[Upstream]], Sequence[Replicas]] = replica_sets
    throttle: KeyThrottle = field(default_factory=KeyThrottle)
    sessions: Sessions = field(default_factory=Sessions)
    metrics: GatewayMetrics = field(default_factory=GatewayMetrics)
    salt_secret: str = field(default_factory=lambda: secrets.token_hex(32), repr=False)
    exposition: Callable[[], Awaitable[str]] | None = None
    started_unix_s: int = field(default_factory=lambda: int(time.time()))
    runs: Runs | None = None
    ledger: Ledger | None = None


async def exposition_of(metrics: GatewayMetrics, upstreams: Sequence[Upstream]) -> str:
    """`metrics` as text, with the workers' current memory."""
    await asyncio.gather(*(upstream.refresh_measured() for upstream in upstreams if upstream.is_up))
    return metrics.exposition().decode()
