"""Background responses of all gateway processes, in the process of the coordinator: the end of one of them loses none.

They are asked for over the coordinator's own replicas, as a gateway process would, and counted beside what those count.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from qserve.gateway.background.runs import PATH, Asker, LocalRuns
from qserve.gateway.bodies import Bodies
from qserve.gateway.keys.book import NamedKeys
from qserve.gateway.middleware import ApiErrors, RequestContext
from qserve.gateway.relay.cache_salts import CacheSalts
from qserve.gateway.relay.relayed import RelayedEndpoints
from qserve.gateway.relay.replicas import Replicas
from qserve.gateway.routes import ROUTES, RelayedRoute
from qserve.gateway.run_history import RunHistory
from qserve.gateway.settings import GatewaySettings
from qserve.gateway.telemetry.metrics import GatewayMetrics

__all__ = ["HostedRuns", "MemberRuns"]


class HostedRuns:
    """`run` must run meanwhile; `close` it."""

    def __init__(
        self,
        settings: GatewaySettings,
        groups: Sequence[Replicas],
        salt_secret: str,
        history: RunHistory,
        keys: NamedKeys | None = None,
    ) -> None:
        self.metrics = GatewayMetrics()
        """What the requests of background responses count."""
        salts = CacheSalts(salt_secret, shared=settings.shared_prefix_cache)
        self._relayed = RelayedEndpoints(settings, groups, self.metrics, Bodies(settings), salts, keys=keys)
        route = next(one for one in ROUTES if isinstance(one, RelayedRoute) and one.path == PATH)
        app = RequestContext(ApiErrors(self._relayed.of(route)), self.metrics, None, history)
        self.runs = LocalRuns(app, settings.max_responses_bytes, settings.keep_responses_s)

    async def close(self) -> None:
        """Ends the processes that were started for requests."""
        await self._relayed.close()


class MemberRuns:
    """What one gateway process asks by its `RemoteRuns`."""

    def __init__(self, runs: LocalRuns) -> None:
        self._runs = runs
        self._pieces: dict[int, list[str]] = {}

    async def answer(self, method: str, *arguments: Any) -> Any:
        """A call of a method of `Runs`, or a piece of a body."""
        if method == "piece":
            number, piece = arguments
            self._pieces.setdefault(number, []).append(piece)
            return None
        if method == "create":
            asker, number = arguments
            return await self._runs.create(Asker(*asker), "".join(self._pieces.pop(number)).encode())
        return await getattr(self._runs, method)(*arguments)

    def drop(self, number: int) -> None:
        """The body of this number is not needed any more."""
        self._pieces.pop(number, None)
