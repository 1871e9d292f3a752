"""Messages between two services of one user, over a unix socket: pickled, with open descriptors beside them.

A message is a header of 12 bytes (the length of the rest, how many descriptors come with it), which carries the
descriptors (SCM_RIGHTS, unix(7)), and the pickled rest. Both sides run the same release and belong to the same user,
which the kernel tells (SO_PEERCRED): who could send a harmful pickle could as well kill the process or trace it.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import socket
import struct
from collections.abc import Sequence
from typing import Any

__all__ = ["SOCKET", "Peer", "Received", "peer_of", "receive", "send", "take_in", "write_out"]

SOCKET = "takeover"
"""Name of the old service's socket in its private folder."""
_HEADER = struct.Struct("<QI")
# SCM_MAX_FD is 253; a worker has three.
_MAX_DESCRIPTORS = 253
_MAX_BYTES = 256 * 1024 * 1024
_STRANGE = "this is not what a service of this release says"

Received = tuple[Any, list[int]]
"""What was said, and the descriptors that came with it."""
Peer = tuple[int, int]
"""Process id and user id of the other side."""


def peer_of(connection: socket.socket) -> Peer:
    """Who is at the other side, as the kernel knows it (Linux)."""
    form = struct.Struct("3i")
    pid, uid, _ = form.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, form.size))
    return pid, uid


async def write_out(connection: socket.socket, said: Any, descriptors: Sequence[int] = ()) -> None:
    """Send from an event loop. Raises OSError where the other side is gone."""
    loop, body = asyncio.get_running_loop(), pickle.dumps(said)
    # A header fits into an empty buffer: what was said before was answered, so that it was read.
    socket.send_fds(connection, [_HEADER.pack(len(body), len(descriptors))], descriptors)
    await loop.sock_sendall(connection, body)


async def take_in(connection: socket.socket) -> Any:
    """The next message in an event loop; one with descriptors is refused. Raises OSError where there is none."""
    loop = asyncio.get_running_loop()
    length, num_descriptors = _HEADER.unpack(await _read(loop, connection, _HEADER.size))
    _check(length, num_descriptors, 0)
    return _loaded(await _read(loop, connection, length))


def send(connection: socket.socket, said: Any) -> None:
    """Send, and wait. Raises OSError where the other side is gone."""
    body = pickle.dumps(said)
    connection.sendall(_HEADER.pack(len(body), 0) + body)


def receive(connection: socket.socket) -> Received:
    """The next message, waited for. Raises OSError where there is none."""
    header, descriptors, _, _ = socket.recv_fds(connection, _HEADER.size, _MAX_DESCRIPTORS)
    try:
        header += _read_now(connection, _HEADER.size - len(header))
        length, num_descriptors = _HEADER.unpack(header)
        _check(length, num_descriptors, len(descriptors))
        return _loaded(_read_now(connection, length)), descriptors
    except BaseException:
        for one in descriptors:
            os.close(one)
        raise


def _loaded(body: bytes) -> Any:
    try:
        return pickle.loads(body)  # noqa: S301 - of the same user
    except Exception as error:  # whatever its classes raise
        raise ConnectionError(_STRANGE) from error


def _check(length: int, num_descriptors: int, num_received: int) -> None:
    if length > _MAX_BYTES or num_descriptors != num_received:
        raise ConnectionError(_STRANGE)


async def _read(loop: asyncio.AbstractEventLoop, connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = await loop.sock_recv(connection, size - len(data))
        if not more:
            raise ConnectionError("the other service is gone")
        data += more
    return data


def _read_now(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = connection.recv(size - len(data))
        if not more:
            raise ConnectionError("the other service is gone")
        data += more
    return data
