"""The gateway's processes: when one is taken for hung, and what becomes of one that can't be started."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest

from qserve.errors import WorkerFailed
from qserve.gateway.processes.coordinator import Service
from qserve.gateway.run_history import RunHistory
from qserve.gateway.settings import GatewaySettings
from qserve.supervisor import gateways
from qserve.supervisor.gateways import Processes, Silence, make_gateway


def test_a_process_that_says_nothing_for_several_looks_has_hung():
    silence = Silence()
    assert [silence.lasts(heard) for heard in (1, 7, 7, 7, *[8] * gateways._MAX_SILENT_LOOKS)].count(True) == 0
    assert silence.is_silent and silence.lasts(8)


def test_a_pause_in_which_nobody_looked_is_no_silence():
    silence = Silence()
    assert not any(silence.lasts(heard) for heard in (5, 5, 6, 6, 7, 7))


async def test_one_that_can_not_be_started_is_tried_again_and_then_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """No memory, no descriptor: a sentence at the end, and until then the other processes serve."""
    for name in ("_FIRST_PAUSE_S", "_LONGEST_PAUSE_S"):
        monkeypatch.setattr(gateways, name, 0.001)

    async def refuse(*command: Any, **options: Any) -> asyncio.subprocess.Process:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(asyncio, "create_subprocess_exec", refuse)
    told: list[str] = []
    service = Service(lambda: None, lambda: None, lambda row: None, RunHistory())  # type: ignore[arg-type, return-value]
    gateway = make_gateway(
        Processes(2),
        GatewaySettings(),
        [],
        service,
        None,
        socket.socket(),
        lambda name, event, **details: told.append(details["reason"]),
    )
    gateway.begin()
    try:
        with pytest.raises(WorkerFailed, match=r"gateway-\d failed 10 times in a row: .*temporarily unavailable"):
            await asyncio.wait_for(gateway.ready(), 60)
    finally:
        await gateway.stop()
    assert told[0] == "it can't be started (Resource temporarily unavailable)"
