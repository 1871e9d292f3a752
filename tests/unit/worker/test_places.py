"""Places: a client with many requests holds its own share of places and no other's."""

from __future__ import annotations

import asyncio

from qserve.worker.places import Places


class Place:
    """A caller that holds its place until it is told to leave."""

    def __init__(self, turns: Places, client: str) -> None:
        self.has_place, self.leave = asyncio.Event(), asyncio.Event()
        self.task = asyncio.create_task(self._hold(turns, client))

    async def _hold(self, turns: Places, client: str) -> None:
        async with turns.of(client):
            self.has_place.set()
            await self.leave.wait()


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def places(turns: Places, clients: str) -> list[Place]:
    made = [Place(turns, client) for client in clients]
    await settle()
    return made


def held(made: list[Place]) -> list[int]:
    return [number for number, one in enumerate(made) if one.has_place.is_set() and not one.task.done()]


async def test_one_client_has_its_share_and_others_theirs() -> None:
    made = await places(Places(2), "aaaab")
    assert held(made) == [0, 4]


async def test_who_waits_goes_by_turns_of_clients_then_in_order() -> None:
    turns = Places(1)
    made = await places(turns, "aaabbc")
    order = []
    while holders := held(made):
        (holder,) = holders
        order.append(holder)
        made[holder].leave.set()
        await settle()
    assert order == [0, 3, 5, 1, 4, 2]


async def test_who_is_cancelled_waits_no_longer_and_gives_its_place_back() -> None:
    turns = Places(1)
    made = await places(turns, "aab")
    made[1].task.cancel()
    made[0].task.cancel()
    await settle()
    assert held(made) == [2]
    made[2].task.cancel()
    await settle()
    assert held(await places(turns, "z")) == [0]


async def test_a_place_that_is_given_to_one_who_is_cancelled_just_then_is_not_lost() -> None:
    for ends_first in (True, False):
        turns = Places(1)
        made = await places(turns, "ab")
        for end in (made[0].leave.set, made[1].task.cancel)[:: 1 if ends_first else -1]:
            end()
        await settle()
        assert held(await places(turns, "c")) == [0]
