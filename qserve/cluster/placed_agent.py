"""The service's handle of an agent on a node: reserved placement, renewed lease, exchanged messages."""

from __future__ import annotations

import asyncio
import contextlib
from functools import partial
from typing import Any, Self

from qserve.cluster.messages import AgentStatus, Assignment, GatewayStatus
from qserve.cluster.placement import Reservation, Reservations
from qserve.cluster.settings import LEASE_S
from qserve.errors import WorkerFailed

__all__ = ["PlacedAgent", "WorkerLost"]

_RENEW_S = LEASE_S / 5
_END_S = 5.0


class WorkerLost(Exception):
    """The worker must be placed again, on another node if there is one.

    Attributes:
        is_reachable: its agent still answers.
        is_outside: something ended its agent or the node, and it was not for want of memory: no request did that.
    """

    def __init__(self, reason: str, *, is_reachable: bool = False, is_outside: bool = False) -> None:
        super().__init__(reason)
        self.is_reachable = is_reachable
        self.is_outside = is_outside


class PlacedAgent:
    """From `reserve` to `release`. Whatever Ray raises comes as WorkerLost or WorkerFailed."""

    def __init__(self, reservations: Reservations, needs: dict[str, float], reservation: Reservation) -> None:
        """Use `reserve`."""
        self._reservations = reservations
        self._needs = needs
        self._reservation = reservation
        self._renewing: asyncio.Task[None] | None = None

    @classmethod
    async def reserve(cls, reservations: Reservations, needs: dict[str, float], limit_s: float) -> Self:
        """A reservation with `needs`, once one is free. Raises WorkerFailed where none is within `limit_s`."""
        try:
            return cls(reservations, needs, await reservations.reserve(needs, limit_s))
        except WorkerFailed:
            raise
        except Exception as error:
            raise WorkerFailed(f"the Ray cluster has no free place: {_words(error)}") from error

    @property
    def address(self) -> str:
        """Of its node."""
        return self._reservation.address

    async def start(self, assignment: Assignment) -> None:
        """The agent begins, and with it its lease. Raises WorkerLost."""
        try:
            await asyncio.to_thread(self._reservations.start, self._reservation, self._needs, assignment)
        except Exception as error:
            raise WorkerLost(f"no process could be started on the node {self.address}: {_words(error)}") from error
        self._renewing = asyncio.create_task(self._renew())

    async def exchange(self, status: GatewayStatus, limit_s: float) -> AgentStatus:
        """The agent's next status. Raises WorkerLost if none comes."""
        try:
            async with asyncio.timeout(limit_s):  # not wait_for, which may lose a cancellation (bpo-37658)
                answer: AgentStatus = await self._reservation.agent.exchange.remote(status)
        except TimeoutError:
            raise WorkerLost(f"the node {self.address} did not answer for {limit_s:g} s") from None
        except Exception as error:  # every way in which an actor is lost has a class of its own in Ray
            reason = f"the node {self.address} is gone: {_words(error)}"
            raise WorkerLost(reason, is_outside=not _is_of_memory(error)) from error
        return answer

    async def memory(self) -> dict[str, Any]:
        """What its worker holds. Raises WorkerFailed."""
        try:
            return dict(await self._reservation.agent.memory.remote())
        except Exception as error:  # Ray raises what the agent raised under classes of its own
            why = _words(error)
            raise WorkerFailed(f"the node {self.address} did not say what the worker holds: {why}") from error

    async def release(self, *, avoid: bool, is_reachable: bool) -> None:
        """What runs on its node ends, by its agent where that is reachable. `avoid`: see `Reservations.give_back`."""
        if self._renewing is not None:
            self._renewing.cancel()
        if self._reservation.agent is not None and is_reachable:
            with contextlib.suppress(Exception):
                async with asyncio.timeout(_END_S):
                    await self._reservation.agent.end.remote()
        with contextlib.suppress(Exception):  # of a cluster that is gone nothing can be given back
            await asyncio.to_thread(partial(self._reservations.give_back, self._reservation, self._needs, avoid=avoid))

    async def _renew(self) -> None:
        """Keep its lease, whoever watches it: a service that drains for minutes, or tests its model, still holds it."""
        while True:
            with contextlib.suppress(Exception):  # an agent that is gone is found out elsewhere
                async with asyncio.timeout(LEASE_S):
                    await self._reservation.agent.renew.remote()
            await asyncio.sleep(_RENEW_S)


def _is_of_memory(error: Exception) -> bool:
    """Whether Ray's monitor ended the agent because its node ran out of memory; not every such error has its class."""
    return "OutOfMemory" in type(error).__name__ or "OUT_OF_MEMORY" in str(error) or "low on memory" in str(error)


def _words(error: Exception) -> str:
    """Ray's errors run over many lines."""
    return " ".join(str(error).split())[:200] or type(error).__name__
