"""What SIGHUP means: a restart, or that the terminal is gone."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator

import pytest

from qserve.supervisor import stop_signal
from qserve.supervisor.stop_signal import StopSignal


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[bool]]:
    """`[True]`: there is one, until the test says otherwise."""
    there = [True]
    monkeypatch.setattr(stop_signal, "_has_terminal", lambda: there[0])
    # Under nohup it is ignored here, too.
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield there
    signal.signal(signal.SIGHUP, before)


async def hung_up(stop: StopSignal, restarts: list[str], count: int) -> None:
    """Sends one, and waits for what comes of it: a restart more, or the stop."""
    os.kill(os.getpid(), signal.SIGHUP)
    async with asyncio.timeout(60):
        while len(restarts) < count and not stop.first.is_set():
            await asyncio.sleep(0.005)


async def test_it_restarts_while_the_terminal_is_there_and_stops_without(terminal: list[bool]) -> None:
    stop, restarts = StopSignal(), list[str]()
    stop.on_hangup(lambda: restarts.append("asked"))
    await hung_up(stop, restarts, 1)
    assert restarts == ["asked"] and not stop.first.is_set()
    terminal[0] = False
    await hung_up(stop, restarts, 2)
    assert restarts == ["asked"] and stop.first.is_set()


async def test_nohup_outlives_the_terminal(terminal: list[bool]) -> None:
    """`nohup` ignores SIGHUP for whom it starts: the user has said that the service is to go on."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    stop, restarts = StopSignal(), list[str]()
    stop.on_hangup(lambda: restarts.append("asked"))
    terminal[0] = False
    os.kill(os.getpid(), signal.SIGHUP)
    await asyncio.sleep(0.05)
    assert not restarts and not stop.first.is_set()
    await hung_up(stop, restarts, 1)
    assert restarts == ["asked"] and not stop.first.is_set()
