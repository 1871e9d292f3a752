"""Room for something else: how much is left for models, for how long, and who is asked to leave."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from qserve.planner.residency.footprint import RAM, Budget, Footprint
from qserve.service.residents import Keeping
from qserve.supervisor.residency import rooms as module
from qserve.supervisor.residency.rooms import LEASE_S, Room, Rooms
from qserve.wire.errors import ApiError
from qserve.worker.base import WorkerState
from tests.unit.supervisor.residency.test_residency import Turns
from tests.unit.supervisor.test_worker import LIVES, plan

__all__ = ["plan"]  # a fixture

BUDGET = Budget({RAM: 100, "card 0": 200, "card 1": 200})
NOTHING: dict[str, Any] = {"room": None, "ram_bytes": None, "card_bytes": None, "policy": "wait"}


def left(*rooms: Room, pinned: tuple[Footprint, ...] = ()) -> dict[str, int]:
    given = Rooms()
    for one in rooms:
        given.give(None, one, 0.0)
    return dict(given.left_of(BUDGET, pinned).pools)


def test_what_is_left_for_models() -> None:
    assert left(Room(30, 50, False, 0)) == {RAM: 70, "card 0": 150, "card 1": 150}
    assert left(Room(30, None, False, 0)) == {RAM: 70, "card 0": 200, "card 1": 200}
    assert left(Room(30, 50, False, 0), Room(80, 0, False, 0)) == {RAM: 0, "card 0": 150, "card 1": 150}
    assert left(Room(None, None, False, 0)) == {RAM: 0, "card 0": 0, "card 1": 0}


def test_all_but_what_is_pinned_and_may_have_to_start_again() -> None:
    pinned = Footprint("p", {"card 1": 60}, {"card 1": 5})
    assert left(Room(None, None, False, 0), pinned=(pinned,)) == {RAM: 0, "card 0": 0, "card 1": 65}


def test_a_lease_ends() -> None:
    rooms = Rooms()
    one = rooms.give(None, Room(1, 1, True, 0), 0.0)
    assert rooms.refuses and rooms.expire(LEASE_S - 1) == []
    assert rooms.give(one, Room(1, 1, False, 0), LEASE_S - 1) == one and not rooms.refuses
    assert rooms.expire(LEASE_S) == [] and rooms.expire(2 * LEASE_S) == [one]
    assert not rooms and not rooms.knows(one) and not rooms.take_back(one)


@pytest.fixture
def turns(plan: Any, tmp_path: Path) -> Callable[..., Turns]:
    return lambda *args, **keeping: Turns(plan, tmp_path, *args, **keeping)


async def granted(one: Turns, **fields: Any) -> str:
    """Asked again until it is given."""
    asked = NOTHING | fields
    async with asyncio.timeout(60):
        while not (answer := await one.residency.control("room", asked))["is_granted"]:
            asked["room"] = answer["room"]
            await asyncio.sleep(0.02)
    return str(answer["room"])


async def test_models_leave_and_come_back(turns: Callable[..., Turns]) -> None:
    async with turns({"a": LIVES}).running() as one:
        one.ask("a")
        one.residents["a"].worker.status.load.num_requests = 1
        waiting = asyncio.create_task(granted(one))
        await one.until_state("a", WorkerState.UNLOADING)
        assert not waiting.done(), "its requests finish first"
        one.residents["a"].worker.status.load.num_requests = 0
        room = await waiting
        assert one.state("a") is WorkerState.IDLE
        await asyncio.sleep(0.3)
        assert one.state("a") is WorkerState.IDLE, "its request waits"
        await one.residency.control("no room", room)
        await one.until_state("a", WorkerState.READY)


async def test_who_fits_beside_comes_back_at_once(turns: Callable[..., Turns]) -> None:
    async with turns({"a": LIVES}).running() as one:
        room = await granted(one)
        one.ask("a")
        await granted(one, room=room, ram_bytes=40)
        await one.until_state("a", WorkerState.READY)


async def test_requests_are_refused_where_that_is_asked_for(turns: Callable[..., Turns]) -> None:
    async with turns({"a": LIVES}).running() as one:
        room = await granted(one, policy="refuse")
        one.ask("a")
        await one.until_state("a", WorkerState.FAILED)
        assert "no room beside a training run" in one.residents["a"].worker.status.detail
        await one.residency.control("no room", room)
        await one.until_state("a", WorkerState.READY)


async def test_pinned_models_stay(turns: Callable[..., Turns]) -> None:
    async with turns({"a": LIVES}, a=Keeping(is_pinned=True)).running() as one:
        await granted(one)
        assert one.state("a") is WorkerState.READY


async def test_a_room_that_nobody_renews_is_taken_back(
    turns: Callable[..., Turns], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LEASE_S", 0.3)
    async with turns({"a": LIVES}).running() as one:
        room = await granted(one)
        one.ask("a")
        await one.until_state("a", WorkerState.READY)
        with pytest.raises(ApiError, match="is not given") as refused:
            await one.residency.control("room", {**NOTHING, "room": room})
        assert refused.value.status == 404
