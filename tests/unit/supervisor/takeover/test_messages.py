"""Messages between two services: whole, with their descriptors, or an error."""

from __future__ import annotations

import asyncio
import os
import pickle
import socket
import struct
from collections.abc import Iterator

import pytest

from qserve.supervisor.takeover.messages import peer_of, receive, send, take_in, write_out


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    """The old service's, which an event loop serves, and the new one's, which waits."""
    old, new = socket.socketpair()
    old.setblocking(False)
    new.settimeout(30)
    with old, new:
        yield old, new


async def test_what_is_said_arrives_with_its_descriptors(ends: tuple[socket.socket, socket.socket]) -> None:
    old, new = ends
    reading, writing = os.pipe()
    said = {"plan": "x" * 3_000_000}  # more than a socket's buffer
    received = asyncio.create_task(asyncio.to_thread(receive, new))
    await write_out(old, said, [writing])
    os.close(writing)
    heard, (copy,) = await received
    os.write(copy, b"through the copy")
    assert heard == said and os.read(reading, 100) == b"through the copy"
    os.close(copy)
    assert os.read(reading, 1) == b"", "a descriptor is left open"
    os.close(reading)


async def test_the_new_service_asks_and_the_old_one_answers(ends: tuple[socket.socket, socket.socket]) -> None:
    old, new = ends
    send(new, "about")
    assert await take_in(old) == "about"


async def test_an_end_in_the_middle_is_an_error(ends: tuple[socket.socket, socket.socket]) -> None:
    old, new = ends
    new.sendall(struct.pack("<QI", 100, 0) + b"half")
    new.close()
    with pytest.raises(ConnectionError, match="gone"):
        await take_in(old)


@pytest.mark.parametrize(
    "written",
    [
        struct.pack("<QI", 1 << 40, 0),
        struct.pack("<QI", len(pickle.dumps(1)), 1) + pickle.dumps(1),
        struct.pack("<QI", 5, 0) + b"noise",
        struct.pack("<QI", 30, 0) + pickle.dumps(os.getcwd)[:10].ljust(30, b"."),
    ],
)
def test_what_no_service_says_is_an_error(written: bytes, ends: tuple[socket.socket, socket.socket]) -> None:
    old, new = ends
    old.sendall(written)
    with pytest.raises(ConnectionError, match="not what a service of this release says"):
        receive(new)


def test_the_kernel_tells_who_is_there(ends: tuple[socket.socket, socket.socket]) -> None:
    assert peer_of(ends[0]) == (os.getpid(), os.getuid())
