"""The early end of a request: the right reason, once, and nobody else's cancellation swallowed."""

from __future__ import annotations

import asyncio
import contextlib
import time

import pytest

from qserve.gateway.limits import ClientGone, ConnectedReceive
from qserve.gateway.relay.cancel_scope import CancelScope, Down, WorkerGivenUp


class Scene:
    """A request within CancelScope that would run for ever."""

    def __init__(self, stall_timeout_s=60.0):
        self.down = Down()
        self.left = asyncio.Event()
        self.task = asyncio.create_task(self._request(stall_timeout_s))

    async def _receive(self):
        await self.left.wait()
        return {"type": "http.disconnect"}

    async def _request(self, stall_timeout_s):
        try:
            async with CancelScope(self._receive, self.down, stall_timeout_s) as self.end:
                await asyncio.sleep(3600)
        finally:
            self.pending_cancellations = asyncio.current_task().cancelling()


async def _settle():
    for _ in range(4):
        await asyncio.sleep(0)


async def test_the_client_leaves():
    scene = Scene()
    await _settle()
    scene.left.set()
    with pytest.raises(ClientGone):
        await scene.task
    assert scene.pending_cancellations == 0 and not scene.down.is_set


async def test_the_worker_is_given_up():
    scene = Scene()
    await _settle()
    scene.down.set()
    with pytest.raises(WorkerGivenUp):
        await scene.task
    assert scene.pending_cancellations == 0


async def test_both_at_once_are_one_end():
    scene = Scene()
    await _settle()
    scene.end.on_down()
    scene.end._on_gone()
    with pytest.raises(WorkerGivenUp):
        await scene.task
    assert scene.pending_cancellations == 0


async def test_a_worker_that_is_down_already_ends_it_at_once():
    scene = Scene()
    scene.down.set()
    with pytest.raises(WorkerGivenUp):
        await scene.task


async def test_a_send_that_does_not_return_is_a_client_that_left():
    scene = Scene(stall_timeout_s=0.02)
    await _settle()
    scene.end.sending_since_s = time.perf_counter()
    with pytest.raises(ClientGone):
        await scene.task


async def test_somebody_elses_cancellation_passes_through():
    scene = Scene()
    await _settle()
    scene.task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await scene.task


async def test_a_request_that_ends_by_itself_leaves_nothing_behind():
    async def never():
        await asyncio.sleep(3600)

    down = Down()
    before = len(asyncio.all_tasks())
    async with CancelScope(never, down, 60.0):
        pass
    with contextlib.suppress(ZeroDivisionError):
        async with CancelScope(never, down, 60.0):
            raise ZeroDivisionError
    await _settle()
    assert len(asyncio.all_tasks()) == before
    down.set()
    await asyncio.sleep(0)  # would cancel this very test if a callback were left


class Connection:
    """One of our own server, as far as it is watched."""

    is_lost = False
    callback = None

    def when_lost(self, callback):
        self.callback = callback
        return not self.is_lost


async def _ended_by(connection):
    down = Down()
    async with CancelScope(ConnectedReceive(None, connection), down, 60.0):
        asyncio.get_running_loop().call_soon(lambda: connection.callback())
        await asyncio.sleep(60)


async def test_our_own_connection_tells_by_itself_and_needs_no_task():
    connection, before = Connection(), len(asyncio.all_tasks())
    async with CancelScope(ConnectedReceive(None, connection), Down(), 60.0):
        assert len(asyncio.all_tasks()) == before
    assert connection.callback is None
    with pytest.raises(ClientGone):
        await _ended_by(connection)


async def test_a_connection_that_was_lost_before_ends_it_at_once():
    connection = Connection()
    connection.is_lost = True
    down = Down()
    with pytest.raises(ClientGone):
        async with CancelScope(ConnectedReceive(None, connection), down, 60.0):
            await asyncio.sleep(60)
    async with CancelScope(ConnectedReceive(None, connection), down, 60.0):
        pass
    await _settle()  # would cancel this very test


async def test_a_worker_that_is_named_later_ends_it_too():
    async def never():
        await asyncio.sleep(3600)

    down = Down()
    with pytest.raises(WorkerGivenUp):
        async with CancelScope(never, None, 60.0) as end:
            end.watch(down)
            down.set()
            await asyncio.sleep(60)


async def test_an_end_that_comes_in_the_tick_in_which_it_is_over_ends_nothing_else():
    """Its callback is scheduled already and can't be taken back: it would cancel whatever the task does next."""

    async def never():
        await asyncio.sleep(3600)

    down = Down()
    async with CancelScope(never, down, 60.0):
        down.set()
    await asyncio.sleep(0.01)
    assert not asyncio.current_task().cancelling()


async def test_what_never_sends_needs_no_timer(monkeypatch):
    timers = []
    loop = asyncio.get_running_loop()
    monkeypatch.setattr(type(loop), "call_later", lambda *given: timers.append(given) or asyncio.Future())
    async with CancelScope(ConnectedReceive(None, Connection()), Down(), 60.0) as end:
        assert not timers
        end.sending_since_s = time.perf_counter()
        assert len(timers) == 1
