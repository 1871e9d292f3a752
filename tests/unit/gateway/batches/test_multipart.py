"""Uploads beside each other: one client, however slow or busy, leaves slots for the others."""

from __future__ import annotations

import asyncio
import io
from contextlib import AsyncExitStack

import pytest

from qserve.gateway import limits
from qserve.gateway.batches.multipart import read_upload
from qserve.gateway.batches.upload_slots import UploadSlots
from qserve.wire.errors import ApiError

SCOPE = {"type": "http", "headers": [(b"content-type", b"multipart/form-data; boundary=b")]}
FORM = b'--b\r\nContent-Disposition: form-data; name="file"; filename="f"\r\n\r\n'


async def test_a_client_alone_has_half_of_the_slots_and_another_one_finds_some():
    slots = UploadSlots()
    async with AsyncExitStack() as held:
        for _ in range(4):
            await held.enter_async_context(slots.slot("busy", 30))
        with pytest.raises(ApiError, match="4 of them by you") as refused:
            await held.enter_async_context(slots.slot("busy", 0.01))
        assert (refused.value.status, refused.value.retry_after_s) == (429, 5)
        for _ in range(2):
            await held.enter_async_context(slots.slot("other", 30))
    async with slots.slot("busy", 30):
        pass


async def test_whoever_waits_for_a_slot_gets_the_next_one():
    slots, began, done = UploadSlots(), asyncio.Event(), asyncio.Event()

    async def upload() -> None:
        async with slots.slot("one", 30):
            began.set()
            await done.wait()

    first = [asyncio.create_task(upload()) for _ in range(4)]
    await asyncio.wait_for(began.wait(), 60)
    waiting = asyncio.create_task(upload())
    await asyncio.sleep(0.01)
    done.set()
    await asyncio.wait_for(asyncio.gather(*first, waiting), 60)


async def test_an_upload_that_trickles_is_ended(monkeypatch):
    """A byte now and then is no silence, and would hold its slot for ever."""
    monkeypatch.setattr(limits, "_MIN_BYTES_PER_S", 1 << 40)
    parts = iter([FORM])

    async def receive():
        await asyncio.sleep(0.02)
        return {"type": "http.request", "body": next(parts, b"x"), "more_body": True}

    with pytest.raises(ApiError, match="less than 1 KiB a second") as refused:
        await asyncio.wait_for(read_upload(SCOPE, receive, io.BytesIO(), 1 << 20, 0.2), 60)
    assert refused.value.status == 408
