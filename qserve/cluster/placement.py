"""Places replicas: one placement group each, on the node that has the fewest of this service's.

One group for all replicas with Ray's SPREAD would do for a number that never changes. A single bundle of a group can't
be given back, though, and Ray's autoscaler takes a node away only when nothing is reserved on it. So each replica has a
group, and what spreads them is the node that is asked for: softly, since Ray alone knows what is free. A group that
fits nowhere stays pending, which is what the autoscaler sees.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Any

from qserve.cluster.agent import Agent
from qserve.cluster.join import ray_module
from qserve.cluster.messages import Assignment
from qserve.errors import WorkerFailed

__all__ = ["Reservation", "Reservations", "emptiest"]

_AVOIDED_S = 60.0
_LOOK_S = 0.25


class Reservation:
    """A reserved group on a node, and the agent that was started in it."""

    def __init__(self, group: Any, node: str, address: str) -> None:
        self.group = group
        self.node = node
        self.address = address
        self.agent: Any = None


class Reservations:
    """Where the replicas of this service are."""

    def __init__(self) -> None:
        self._ray = ray_module()
        self._taken: dict[str, list[Mapping[str, float]]] = {}
        self._avoided: dict[str, float] = {}

    async def reserve(self, needs: Mapping[str, float], limit_s: float) -> Reservation:
        """A place with `needs`; waits for one while none is free. Raises WorkerFailed after `limit_s`."""
        group = await asyncio.to_thread(self._group, needs)
        deadline_s = time.monotonic() + limit_s
        try:
            while not await asyncio.to_thread(group.wait, 0):
                if time.monotonic() > deadline_s:
                    raise WorkerFailed(
                        f"no node of the cluster had {_words(needs)} free within {limit_s:g} s; `ray status` shows "
                        "what uses them"
                    )
                await asyncio.sleep(_LOOK_S)
            reservation = await asyncio.to_thread(self._reservation, group)
        except BaseException:
            self._remove(group)
            raise
        self._taken.setdefault(reservation.node, []).append(needs)
        return reservation

    def start(self, reservation: Reservation, needs: Mapping[str, float], assignment: Assignment) -> None:
        """Start an agent there; it answers once it runs."""
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        where = PlacementGroupSchedulingStrategy(reservation.group, placement_group_bundle_index=0)
        options = {"num_cpus": needs.get("CPU", 0), "num_gpus": needs.get("GPU", 0), "max_concurrency": 4}
        reservation.agent = self._ray.remote(Agent).options(**options, scheduling_strategy=where).remote(assignment)

    def give_back(self, reservation: Reservation, needs: Mapping[str, float], *, avoid: bool) -> None:
        """What runs there ends; `avoid`: the node is not asked again for a minute, since something is wrong with it."""
        if avoid:
            self._avoided[reservation.node] = time.monotonic() + _AVOIDED_S
        self._taken[reservation.node].remove(needs)
        if reservation.agent is not None:
            self._ray.kill(reservation.agent)
        self._remove(reservation.group)

    def _group(self, needs: Mapping[str, float]) -> Any:
        from ray.util.placement_group import placement_group

        now_s = time.monotonic()
        avoided = {node for node, until_s in self._avoided.items() if until_s > now_s}
        alive = {one["NodeID"]: one["Resources"] for one in self._ray.nodes() if one["Alive"]}
        node = emptiest(alive, self._taken, needs, avoided)
        return placement_group([dict(needs)], strategy="STRICT_PACK", _soft_target_node_id=node)

    def _reservation(self, group: Any) -> Reservation:
        from ray.util import placement_group_table

        node = next(iter(placement_group_table(group)["bundles_to_node_id"].values()))
        addresses = {one["NodeID"]: one["NodeManagerAddress"] for one in self._ray.nodes()}
        return Reservation(group, node, addresses[node])

    def _remove(self, group: Any) -> None:
        from ray.util.placement_group import remove_placement_group

        remove_placement_group(group)


def emptiest(
    nodes: Mapping[str, Mapping[str, float]],
    taken: Mapping[str, list[Mapping[str, float]]],
    needs: Mapping[str, float],
    avoided: set[str],
) -> str | None:
    """The node with the fewest of our replicas among those whose resources hold one more; None: nobody's.

    `nodes` are what Ray may give away there in all, `taken` what our replicas have of it.
    """
    able = [
        node
        for node, has in nodes.items()
        if node not in avoided
        and all(
            has.get(what, 0) - sum(one.get(what, 0) for one in taken.get(node, ())) >= much
            for what, much in needs.items()
        )
    ]
    return min(able, key=lambda node: (len(taken.get(node, ())), node), default=None)


def _words(needs: Mapping[str, float]) -> str:
    return " and ".join(f"{much:g} {what}" for what, much in needs.items())
