"""Carries out the schedule: looks at who waits, lets models leave, loads others, one change after the other."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

from qserve.errors import QserveError
from qserve.planner.residency.footprint import Budget
from qserve.planner.residency.schedule import Change, Rules, can_ever_load, next_change
from qserve.service.residents import ResidentsPlan
from qserve.supervisor.deployment import ModelDeployment
from qserve.supervisor.record import RunRecord
from qserve.supervisor.residency.resident import Resident
from qserve.supervisor.residency.rooms import LEASE_S, Room, Rooms
from qserve.supervisor.residency.standby import Standby
from qserve.supervisor.residency.worker import OnDemandWorker, held_by
from qserve.supervisor.runner import Worker
from qserve.units import format_bytes
from qserve.wire.errors import ApiError

__all__ = ["Residency"]

_log = logging.getLogger("qserve.supervisor")
_LOOK_S = 0.05
_SAMPLE_S = 0.1
# A model whose start failed is not tried again for so long; its requests are told why.
_AGAIN_S = 30.0


class Residency:
    """Of one service. `start` loads what is to be there at first, `run` serves the schedule for ever."""

    def __init__(
        self,
        residents: Sequence[Resident],
        budget: Budget,
        rules: Rules,
        record: RunRecord,
        standby: Standby | None = None,
    ) -> None:
        self._residents = {one.name: one for one in residents}
        self._budget, self._rules, self._record = budget, rules, record
        self._changing = asyncio.Lock()
        self._rooms = Rooms()
        starting = asyncio.Lock()
        self._standby = standby
        for one in residents:
            one.worker.starting, one.worker.standby = starting, standby

    @classmethod
    def of(
        cls, workers: Sequence[Worker], deployments: Sequence[ModelDeployment], plan: ResidentsPlan, record: RunRecord
    ) -> Residency:
        """Of those of the workers that are loaded on demand; `deployments` are what they were made from."""
        residents = [
            Resident(worker, one.on_demand.footprint, one.on_demand.keeping)
            for worker, one in zip(workers, deployments, strict=True)
            if isinstance(worker, OnDemandWorker) and one.on_demand is not None
        ]
        return cls(residents, plan.budget, plan.rules, record, _standby(residents, plan, record))

    async def stop(self) -> None:
        """End the process that stands by."""
        if self._standby is not None:
            await self._standby.stop()

    async def start(self) -> None:
        """Load the pinned models, then the others in their order while there is room. Raises the error of a start."""
        first = sorted(self._residents.values(), key=lambda one: not one.keeping.is_pinned)
        for one in first:
            beside = [other.footprint for other in first if other.worker.is_loaded]
            if one.keeping.preload and not self._budget.short_together([*beside, one.footprint]):
                await self._load(one)
        await self._stand_by()

    async def _stand_by(self) -> None:
        """For the next load, which is none where all models are there."""
        if self._rooms:
            return
        if self._standby is not None and not all(one.worker.is_loaded for one in self._residents.values()):
            await self._standby.begin()

    async def run(self) -> None:
        """Look at who waits, and change what is resident, for ever."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._see())
            tasks.create_task(self._change())

    async def control(self, action: str, name: Any = "") -> Any:
        """What the gateway asks for: `show`, `load`, `unload`, `pin` or `unpin` a model, give `room`, take it back.

        Raises ApiError for what can't be.
        """
        if action == "room":
            return await self._give_room(**name)
        if action == "no room":
            return self._take_room_back(name)
        if action == "show":
            now_s = time.monotonic()
            return [one.document(now_s) for one in self._residents.values()]
        one = self._residents.get(name)
        if one is None:
            raise ApiError(409, f"{name!r} is always in memory", "always_resident", "model")
        actions: dict[str, Callable[[Resident], Awaitable[None]]] = {
            "load": self._load_on_request,
            "unload": self._unload_on_request,
            "pin": self._pin,
            "unpin": self._unpin,
        }
        await actions[action](one)
        return one.document(time.monotonic())

    async def _see(self) -> None:
        while True:
            now_s = time.monotonic()
            for room_id in self._rooms.expire(now_s):
                _log.warning("room %s was not renewed: it is the models' again", room_id)
            for one in self._residents.values():
                one.see(now_s)
                if one.failed_s is not None and now_s - one.failed_s >= _AGAIN_S:
                    self._may_try_again(one)
            await asyncio.sleep(_LOOK_S)

    async def _change(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_S)
            async with self._changing:
                self._refuse_hopeless()
                views = [one.view() for one in self._residents.values()]
                change = next_change(views, self._left, self._rules, time.monotonic())
                if change is not None:
                    await self._apply(change)

    async def _apply(self, change: Change) -> None:
        """Raises nothing for a model that can't be loaded: those that left for it come back."""
        newcomer = None if change.load is None else self._residents[change.load]
        leaving = [self._residents[name] for name in change.unload]
        why = self._why_leaves() if newcomer is None else f"{newcomer.name} is asked for, and needs the room"
        for one in leaving:
            await self._unload(one, why)
        if newcomer is None:
            return
        try:
            await self._load(newcomer)
        except QserveError as error:
            _log.warning("%s could not be loaded: %s", newcomer.name, error)
            newcomer.failed(time.monotonic())
            for one in leaving:
                await self._bring_back(one)
        await self._stand_by()

    def _why_leaves(self) -> str:
        return "a training run needs the room" if self._rooms else "it was idle for its ttl"

    @property
    def _left(self) -> Budget:
        """What models may have now."""
        pinned = [one.footprint for one in self._residents.values() if one.keeping.is_pinned]
        return self._rooms.left_of(self._budget, pinned) if self._rooms else self._budget

    def _take_room_back(self, room: str) -> Any:
        if not self._rooms.take_back(room):
            raise ApiError(404, f"the room {room[:40]!r} is not given", "no_such_room")
        for one in self._residents.values():
            self._may_try_again(one)
        return {"room": room, "is_granted": False, "lease_s": 0.0}

    def _may_try_again(self, one: Resident) -> None:
        if one.failed_s is not None:
            one.failed_s = None
            one.worker.may_load_again()

    async def _give_room(self, room: str | None, ram_bytes: int | None, card_bytes: int | None, policy: str) -> Any:
        """Asked again and again until it is granted, and then before the lease ends."""
        if room is not None and not self._rooms.knows(room):
            raise ApiError(404, f"the room {room[:40]!r} is not given, or was not renewed in time", "no_such_room")
        await self.stop()
        now_s = time.monotonic()
        given = self._rooms.give(room, Room(ram_bytes, card_bytes, policy == "refuse", 0.0), now_s)
        loaded = [one.footprint for one in self._residents.values() if one.worker.is_loaded]
        is_granted = not self._changing.locked() and not self._left.short_together(loaded)
        return {"room": given, "is_granted": is_granted, "lease_s": LEASE_S}

    async def _bring_back(self, one: Resident) -> None:
        try:
            await self._load(one)
        except QserveError as error:
            _log.warning("%s did not come back: %s", one.name, error)
            one.failed(time.monotonic())

    async def _load(self, one: Resident) -> None:
        began_s, worker = time.monotonic(), one.worker
        peak = asyncio.create_task(_peak_of(worker))
        try:
            await worker.load()
        finally:
            peak.cancel()
        load_s = time.monotonic() - began_s
        one.became_ready(time.monotonic(), round(load_s, 3))
        rest = sum(one.footprint.rest.values())
        peak_bytes = max(worker.peak_bytes, await asyncio.to_thread(held_by, worker.running_pid))
        self._record.event(
            worker.status.name, "loaded", load_s=round(load_s, 3), peak_bytes=peak_bytes, rest_bytes=rest
        )

    async def _unload(self, one: Resident, why: str) -> None:
        began_s, worker = time.monotonic(), one.worker
        await worker.unload(why)
        figures = {"held_bytes": worker.held_bytes, "reclaimed_bytes": worker.reclaimed_bytes}
        seconds = round(time.monotonic() - began_s, 3)
        self._record.event(worker.status.name, "unloaded", reason=why, seconds=seconds, **figures)

    async def _load_on_request(self, one: Resident) -> None:
        self._may_try_again(one)
        if not one.worker.is_loaded:
            if why := self._why_hopeless(one):
                raise ApiError(409, why, "no_room", "model")
            one.is_wanted = True

    def _refuse_hopeless(self) -> None:
        """Requests for a model that has no room beside the pinned ones are told so, instead of waiting in vain."""
        for one in self._residents.values():
            if one.waiting_since_s is not None and one.failed_s is None and (why := self._why_hopeless(one)):
                one.worker.refuse(why)
                one.failed(time.monotonic())

    def _why_hopeless(self, one: Resident) -> str:
        """Why it can't be loaded as long as others are pinned; "": it can."""
        views = {other: other.view() for other in self._residents.values()}
        if can_ever_load(views[one], list(views.values()), self._left if self._rooms.refuses else self._budget):
            return ""
        if self._rooms.refuses and can_ever_load(views[one], list(views.values()), self._budget):
            return f"{one.name} has no room beside a training run; it is loaded again after that"
        pinned = " and ".join(other.name for other in views if other.keeping.is_pinned and other is not one)
        return f"{one.name} has no room beside {pinned}, pinned (POST /v1/qserve/models/NAME/unpin)"

    async def _unload_on_request(self, one: Resident) -> None:
        async with self._changing:
            one.is_wanted = False
            if one.worker.is_loaded:
                await self._unload(one, "its end was requested")

    async def _pin(self, one: Resident) -> None:
        pinned = [other for other in self._residents.values() if other.keeping.is_pinned and other is not one]
        if short := self._budget.short_together([one.footprint, *(other.footprint for other in pinned)]):
            message = f"{one.name!r} can't be pinned beside {' and '.join(other.name for other in pinned)}"
            raise ApiError(409, f"{message}: {format_bytes(short)} are missing", "no_room", "model")
        one.keeping = replace(one.keeping, is_pinned=True, ttl_s=None)
        if not one.worker.is_loaded:
            one.is_wanted = True

    async def _unpin(self, one: Resident) -> None:
        one.keeping = replace(one.keeping, is_pinned=False)


def _standby(residents: Sequence[Resident], plan: ResidentsPlan, record: RunRecord) -> Standby | None:
    """For the workers of `plan.standby`, with what the first of them needs."""
    launches = [one.worker.launch for one in residents]
    first = next((one for one in launches if one.command[1:3] == ("-m", plan.standby)), None)
    return None if first is None else Standby(plan.standby, first, record.log_file("standby"))


async def _peak_of(worker: OnDemandWorker) -> None:
    """Sees the most that it holds while it starts, in `worker.peak_bytes`."""
    worker.peak_bytes = 0
    while True:
        await asyncio.sleep(_SAMPLE_S)
        worker.peak_bytes = max(worker.peak_bytes, await asyncio.to_thread(held_by, worker.running_pid))
