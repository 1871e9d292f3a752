"""Servers that go wrong as real ones do: raw sockets that read a request and answer with canned bytes."""

from __future__ import annotations

import contextlib
import json
import re
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest

from qserve.bench.fake_server import FakeServer

CARDS = {"data": [{"id": "m", "owned_by": "test"}]}


def whole(status: int, body: object, content_type: str = "application/json") -> bytes:
    """An answer in one piece."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return f"HTTP/1.1 {status} X\r\ncontent-type: {content_type}\r\ncontent-length: {len(data)}\r\n\r\n".encode() + data


def stream(*events: object, end: bool = True) -> bytes:
    """A stream of events; without its end the connection breaks off."""
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    parts = [b"data: " + (one.encode() if isinstance(one, str) else json.dumps(one).encode()) for one in events]
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(part) + 2, part + b"\n\n") for part in parts)
    return head + chunks + (b"0\r\n\r\n" if end else b"")


def token(text: str = " w") -> dict[str, object]:
    return {"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None}]}


@dataclass
class Canned:
    """`answer(path, body)` says what comes back; `requests` is what was asked."""

    answer: Callable[[str, dict[str, object]], bytes]
    requests: list[tuple[str, dict[str, object], str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}"
        self._open: list[socket.socket] = []
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listening.accept()
                self._open.append(connection)
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError, ValueError), connection, connection.makefile("rb") as lines:
            while first := lines.readline():
                head = b"".join(iter(lines.readline, b"\r\n")).decode()
                length = re.search(r"content-length: (\d+)", head, re.IGNORECASE)
                body = json.loads(lines.read(int(length[1]))) if length else {}
                path = first.decode().split()[1]
                self.requests.append((path, body, head))
                data = whole(200, CARDS) if path == "/v1/models" else self.answer(path, body)
                connection.sendall(data)
                if b"transfer-encoding" in data and not data.endswith(b"0\r\n\r\n"):
                    return

    def die(self) -> None:
        """At once: nobody listens, and every connection is reset."""
        # shutdown, since a close alone does not wake the thread in accept
        with contextlib.suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        for connection in self._open:
            with contextlib.suppress(OSError):
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                connection.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def canned() -> Iterator[Callable[..., Canned]]:
    """`canned(lambda path, body: bytes)` makes a server for one test."""
    made: list[Canned] = []

    def make(answer: Callable[[str, dict[str, object]], bytes]) -> Canned:
        made.append(Canned(answer))
        return made[-1]

    yield make
    for one in made:
        one.die()


@pytest.fixture
def fake() -> Iterator[Callable[[float, float], FakeServer]]:
    """`fake(ttft_ms, itl_ms)`: the shipped server of set latencies, in this process."""
    made: list[FakeServer] = []

    def make(ttft_ms: float = 0.0, itl_ms: float = 0.0) -> FakeServer:
        server = FakeServer(ttft_ms, itl_ms)
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        made.append(server)
        return server

    yield make
    for one in made:
        one.shutdown()
        one.server_close()


def until(holds: Callable[[], bool], limit_s: float = 60.0) -> None:
    """The bound keeps a broken promise from hanging the suite."""
    deadline = time.monotonic() + limit_s
    while not holds():
        assert time.monotonic() < deadline, "not in time"
        time.sleep(0.02)
