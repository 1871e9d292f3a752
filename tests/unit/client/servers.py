"""Servers whose bytes are known, a connection a time."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

_WAIT_S = 10


class RawServer:
    """Sends one text of bytes to each connection after its request, and closes it.

    Attributes:
        requests: the bytes of each request.
    """

    def __init__(self, answers: Sequence[bytes | None]) -> None:
        """An answer of None: none, until the test ends."""
        self.requests: list[bytes] = []
        self._answers, self._ended = answers, threading.Event()
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._thread = threading.Thread(target=self._serve, daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._listening.getsockname()[1]}"

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._ended.set()
        with suppress(OSError):  # closing alone does not end the thread's `accept`
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self._thread.join(_WAIT_S)

    def _serve(self) -> None:
        for answer in self._answers:
            try:
                connection, _ = self._listening.accept()
            except OSError:
                return
            with connection:
                connection.settimeout(_WAIT_S)
                self.requests.append(_request_of(connection))
                if answer is None:
                    self._ended.wait(_WAIT_S)
                else:
                    connection.sendall(answer)


def _request_of(connection: socket.socket) -> bytes:
    data = b""
    while not _is_whole(data) and (more := connection.recv(65536)):
        data += more
    return data


def _is_whole(request: bytes) -> bool:
    head, end, body = request.partition(b"\r\n\r\n")
    lengths = [int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
    return bool(end) and len(body) >= sum(lengths)


@contextmanager
def serving(*answers: bytes | None) -> Iterator[RawServer]:
    """A server that gives these answers, one to each connection."""
    server = RawServer(answers)
    server.start()
    try:
        yield server
    finally:
        server.close()


def answer(body: bytes, status: int = 200, *headers: str, length: int | None = None) -> bytes:
    """`length`: the content-length where it is not the body's."""
    lines = (f"HTTP/1.1 {status} Said", f"content-length: {len(body) if length is None else length}", *headers, "", "")
    return "\r\n".join(lines).encode() + body
