"""What the benchmarks of the gateway share: a client that costs little, the ways to a worker, processes that end."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import httptools
import uvicorn

KEY = secrets.token_hex(16)
START_LIMIT_S = 300


class Client(asyncio.Protocol):
    """One keep-alive connection that counts events and looks at nothing else, so as to cost the machine little."""

    def __init__(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._transport: asyncio.WriteTransport | None = None
        self.num_events = 0
        self.first_s = 0.0
        self.last_s = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._done.done():
            self._done.set_exception(ConnectionError("closed before the answer was complete"))

    def ask(self, request: bytes) -> asyncio.Future[None]:
        """Sends; the future is done when the answer is complete."""
        self.num_events = 0
        self.first_s = 0.0
        self._done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        assert self._transport is not None
        self.sent_s = time.perf_counter()
        self._transport.write(request)
        return self._done

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_body(self, body: bytes) -> None:
        self.last_s = time.perf_counter()
        self.first_s = self.first_s or self.last_s
        self.num_events += body.count(b"data: ")

    def on_message_complete(self) -> None:
        if self._parser.get_status_code() != 200:
            self._done.set_exception(RuntimeError(f"status {self._parser.get_status_code()}"))
        else:
            self._done.set_result(None)
        self._parser = httptools.HttpResponseParser(self)


@dataclass(frozen=True)
class Endpoint:
    """Where requests go: the worker's unix socket (`port` 0), or the gateway's port."""

    name: str
    socket: Path
    port: int

    async def connect(self) -> Client:
        loop = asyncio.get_running_loop()
        if self.port:
            return (await loop.create_connection(Client, "127.0.0.1", self.port))[1]
        return (await loop.create_unix_connection(Client, str(self.socket)))[1]


def message_of(path: str, value: Any) -> bytes:
    """A whole HTTP message."""
    body = json.dumps(value).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
        f"authorization: Bearer {KEY}\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


@contextlib.contextmanager
def ended(command: list[str], log: Path | None = None) -> Iterator[subprocess.Popen[bytes]]:
    """A process with all that it starts, ended with the block."""
    output = None if log is None else log.open("wb")
    process = subprocess.Popen(command, stdout=output, stderr=output, start_new_session=True)
    try:
        yield process
    finally:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(15)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


async def serving_at(server: uvicorn.Server, port_file: Path) -> None:
    """Serves to the end; its port stands in `port_file`, whole, once it listens."""
    serving = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.01)
    partial = port_file.with_suffix(".partial")
    partial.write_text(str(server.servers[0].sockets[0].getsockname()[1]))
    partial.rename(port_file)
    await serving


def wait_for(holds: Callable[[], bool], process: subprocess.Popen[bytes]) -> None:
    """Until `holds()`; ends the program if the process ends first."""
    deadline = time.monotonic() + START_LIMIT_S
    while not holds():
        if process.poll() is not None or time.monotonic() > deadline:
            raise SystemExit(f"did not start: {process.args!r}")
        time.sleep(0.05)
