"""What all clients together may keep in the gateway's memory, and what one of them may."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qserve.gateway.bodies import Bodies, BodyBudget
from qserve.gateway.limits import ClientGone
from qserve.gateway.settings import GatewaySettings
from qserve.units import KIB, MIB
from qserve.wire.errors import ApiError

MAX_BYTES = 4 * MIB
SETTINGS = GatewaySettings(max_bodies_bytes=MAX_BYTES, max_body_bytes=MIB, body_idle_timeout_s=0.2)
SMALL = 100 * KIB


class Client:
    """Sends one body: its first half at once, the rest when it is told to."""

    def __init__(self, bodies: Bodies, address: str, num_bytes: int, *, chunked: bool = False) -> None:
        length = (b"transfer-encoding", b"chunked") if chunked else (b"content-length", b"%d" % num_bytes)
        scope = {"type": "http", "headers": [length], "client": (address, 1)}
        self._parts = [b"x" * (num_bytes // 2), b"x" * (num_bytes - num_bytes // 2)]
        self.rest = asyncio.Event()
        self.keep = asyncio.Event()
        self.num_asked = 0
        self.has_left = False
        self.task = asyncio.create_task(self._send(bodies, scope))

    async def _send(self, bodies: Bodies, scope) -> int:
        async with bodies.read(scope, self._receive) as body:
            num_bytes = len(body.data)
            await self.keep.wait()
            return num_bytes

    async def _receive(self):
        self.num_asked += 1
        if len(self._parts) == 1:
            await self.rest.wait()
        if self.has_left:
            return {"type": "http.disconnect"}
        return {"type": "http.request", "body": self._parts.pop(0), "more_body": bool(self._parts)}

    async def end(self) -> None:
        self.rest.set()
        self.keep.set()
        with contextlib.suppress(ApiError):
            await self.task


async def _moment() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


@given(st.lists(st.tuples(st.sampled_from("abcde"), st.integers(0, MIB)), max_size=200))
def test_whatever_is_sent_the_sum_is_bounded_and_a_newcomer_with_a_small_body_fits(asked):
    budget = BodyBudget(MAX_BYTES)
    for client, num_bytes in asked:
        if budget.fits(client, num_bytes):
            budget.add(client, num_bytes)
        assert budget.num_bytes <= MAX_BYTES
    large = sum(num_bytes for _, num_bytes in asked if num_bytes > 128 * KIB)
    if large == sum(num_bytes for _, num_bytes in asked):
        assert budget.fits("new", SMALL)


def test_one_client_takes_half_and_leaves_as_much_to_another():
    budget = BodyBudget(MAX_BYTES)
    held = {"greedy": 0, "other": 0}
    for client in held:
        while budget.fits(client, MIB // 2):
            budget.add(client, MIB // 2)
            held[client] += MIB // 2
    assert held["greedy"] <= MAX_BYTES / 2
    assert held["other"] >= held["greedy"] / 2


async def test_a_hundred_clients_hold_no_more_than_the_bound_and_all_are_served_in_turn():
    bodies = Bodies(GatewaySettings(max_bodies_bytes=MAX_BYTES, max_body_bytes=MIB, body_idle_timeout_s=30))
    clients = [Client(bodies, f"10.0.0.{number}", MIB) for number in range(100)]
    num_seen = 0
    while waiting := [client for client in clients if not client.task.done()]:
        await _moment()
        assert bodies.num_bytes <= MAX_BYTES
        read = [client for client in waiting if client.num_asked]
        assert read, "somebody is always served"
        num_seen = max(num_seen, bodies.num_bytes)
        for client in read:
            await client.end()
    assert num_seen >= MAX_BYTES / 2
    assert [await client.task for client in clients] == [MIB] * 100
    assert bodies.num_bytes == 0


async def test_what_finds_no_space_is_not_read_and_refused_after_a_while():
    bodies = Bodies(SETTINGS)
    first = [Client(bodies, "10.0.0.1", MIB) for _ in range(4)]
    await _moment()
    waits = [client for client in first if not client.num_asked]
    assert waits and all(client.num_asked for client in first if client not in waits)
    for client in first:
        if client not in waits:
            client.rest.set()  # whole, and held: one that were idle would leave its space after as long
    with pytest.raises(ApiError) as refused:
        await waits[0].task
    assert (refused.value.status, refused.value.code, refused.value.retry_after_s) == (429, "queue_full", 5)
    newcomer = Client(bodies, "10.0.0.2", MIB)
    small = Client(bodies, "10.0.0.1", SMALL)
    await _moment()
    assert newcomer.num_asked and small.num_asked, "others, and small bodies, find space"
    for client in (*first, newcomer, small):
        await client.end()
    assert bodies.num_bytes == 0


async def test_a_body_of_unknown_length_holds_what_it_may_have_and_then_what_it_has():
    bodies = Bodies(SETTINGS)
    client = Client(bodies, "10.0.0.1", 1000, chunked=True)
    await _moment()
    assert bodies.num_bytes == MIB
    client.rest.set()
    await _moment()
    assert bodies.num_bytes == 1000
    await client.end()


@pytest.mark.parametrize("ending", ["cancelled", "client left", "too slow"])
async def test_however_a_body_ends_its_bytes_are_given_back(ending):
    bodies = Bodies(SETTINGS)
    client = Client(bodies, "10.0.0.1", MIB)
    await _moment()
    assert bodies.num_bytes == MIB
    if ending == "cancelled":
        client.task.cancel()
    elif ending == "client left":
        client.has_left = True
        client.rest.set()
    with pytest.raises((asyncio.CancelledError, ApiError, ClientGone)):
        await client.task
    assert bodies.num_bytes == 0


async def test_a_body_that_was_dropped_is_given_back_once():
    bodies = Bodies(SETTINGS)

    async def receive():
        return {"type": "http.request", "body": b"x" * 1000}

    scope = {"type": "http", "headers": [(b"content-length", b"1000")], "client": ("10.0.0.1", 1)}
    async with bodies.read(scope, receive) as body:
        assert (len(body.data), bodies.num_bytes) == (1000, 1000)
        body.drop()
        assert (body.data, bodies.num_bytes) == (b"", 0)
    assert bodies.num_bytes == 0


async def test_a_body_that_trickles_is_ended(monkeypatch):
    """A byte now and then would hold its memory for ever."""
    bodies = Bodies(SETTINGS)

    async def receive():
        await asyncio.sleep(0.02)
        return {"type": "http.request", "body": b"x", "more_body": True}

    scope = {"type": "http", "headers": [(b"content-length", b"1000")], "client": ("10.0.0.1", 1)}
    with pytest.raises(ApiError) as refused:
        async with asyncio.timeout(60), bodies.read(scope, receive):
            pass
    assert refused.value.status == 408
