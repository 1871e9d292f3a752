"""What a worker writes: by lines into its log file, and to whoever listens."""

from __future__ import annotations

import asyncio
import contextlib
import io
import logging
import os
from collections.abc import Callable
from pathlib import Path

from qserve.runs.private import open_private

__all__ = ["WorkerOutput"]

_log = logging.getLogger("qserve.supervisor")
_MAX_LINE_BYTES = 1024 * 1024


class WorkerOutput(asyncio.Protocol):
    """Reads a pipe, from `begin` until it is closed at its other end. Lines beyond 1 MiB are skipped."""

    def __init__(self, log_file: Path, hear: Callable[[str], None]) -> None:
        """`hear` gets each line, without its end."""
        self._log_file = log_file
        self._hear = hear
        self._rest = b""
        self._is_skipping = False
        self._ended = asyncio.Event()

    async def begin(self, descriptor: int) -> None:
        """Read from `descriptor`, which belongs to this object from now on."""
        self._log = self._opened_log()
        self._pipe = os.fdopen(descriptor, "rb", buffering=0)
        self._transport, _ = await asyncio.get_running_loop().connect_read_pipe(lambda: self, self._pipe)

    def redirect(self, log_file: Path, hear: Callable[[str], None]) -> None:
        """What comes from now on belongs to another log, and another listener."""
        self._log.close()
        self._log_file, self._hear = log_file, hear
        self._log = self._opened_log()

    @property
    def descriptor(self) -> int:
        """That of the pipe."""
        return self._pipe.fileno()

    async def ended(self) -> None:
        """Returns when nobody holds the other end any more, and all is read."""
        await self._ended.wait()

    def pause(self) -> None:
        """Leave what comes in the pipe, for another reader of it or until `resume`."""
        if not self._ended.is_set():
            self._transport.pause_reading()

    def resume(self) -> None:
        """Read on after `pause`."""
        if not self._ended.is_set():
            self._transport.resume_reading()

    def close(self) -> None:
        """Read no more."""
        self._transport.close()

    # asyncio.Protocol

    def data_received(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            if not self._is_skipping:
                self._take(line + b"\n")
            self._is_skipping = False
        if len(self._rest) > _MAX_LINE_BYTES:
            self._rest, self._is_skipping = b"", True
        elif self._is_skipping:
            self._rest = b""

    def connection_lost(self, exc: Exception | None) -> None:
        if self._rest:
            self._take(self._rest)
        self._log.close()
        self._ended.set()

    def _take(self, line: bytes) -> None:
        # A full disk loses log lines and nothing else.
        with contextlib.suppress(OSError):
            self._log.write(line)
        self._hear(line.decode(errors="replace").strip())

    def _opened_log(self) -> io.FileIO:
        """Unbuffered: what a full disk did not take must not be tried again when the file is closed."""
        try:
            return io.FileIO(self._log_file, "a", opener=open_private)
        except OSError as error:
            _log.warning("%s can't be written (%s); the service continues", self._log_file, error)
            return io.FileIO(os.devnull, "a")
