"""Comments on a stream that waits."""

from __future__ import annotations

import asyncio

import pytest
from starlette.types import Message

from qserve.gateway.relay import keep_alive
from qserve.gateway.relay.keep_alive import KeepAlive


async def test_they_come_until_it_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keep_alive, "_EVERY_S", 0.001)
    sent: list[bytes] = []

    async def send(message: Message) -> None:
        sent.append(message["body"])

    async with KeepAlive(send) as waits:
        while len(sent) < 3:
            await asyncio.sleep(0.001)
        assert waits.end() and not waits.end()
        count = len(sent)
        await asyncio.sleep(0.01)
    assert len(sent) == count and all(one.startswith(b": ") and one.endswith(b"\n\n") for one in sent)


async def test_a_stream_that_does_not_wait_has_none() -> None:
    async with KeepAlive(None) as waits:
        assert not waits.end()
