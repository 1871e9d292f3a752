"""A worker's progress in a mapped file of 24 bytes, which the supervisor reads without a request.

HTTP answers say that the event loop turns, not that the model computes, and a busy loop answers late although all is
well. A beat is a count that goes up with every step, and within long steps with every layer.
"""

from __future__ import annotations

import mmap
import os
import struct
import time
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Heartbeat", "Progress", "heartbeat_file", "read_heartbeat"]

# Beats so far, sequences not finished, CLOCK_MONOTONIC (one clock for all processes of a machine) of the last beat.
_FIELDS = struct.Struct("<qqq")


@dataclass(frozen=True)
class Progress:
    """How far a worker has come: `num_steps` only ever grows, `num_unfinished` is what it still has to compute."""

    num_steps: int
    num_unfinished: int


def heartbeat_file(socket: Path) -> Path:
    """Where the worker that listens on `socket` leaves its beats: beside it, in the private folder."""
    return socket.with_suffix(".beat")


class Heartbeat:
    """The worker's side. Any thread may call `beat`; a lost count is no harm, since only a change is looked for."""

    def __init__(self, file: Path) -> None:
        """Makes `file`, or begins it anew."""
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            os.ftruncate(descriptor, _FIELDS.size)
            self._map = mmap.mmap(descriptor, _FIELDS.size)
        finally:
            os.close(descriptor)
        self._num_steps = 0
        self._num_unfinished = 0

    def beat(self, num_unfinished: int | None = None) -> None:
        """Something was computed, came or went; `num_unfinished` sequences remain (None: as many as before)."""
        self._num_steps += 1
        if num_unfinished is not None:
            self._num_unfinished = num_unfinished
        _FIELDS.pack_into(self._map, 0, self._num_steps, self._num_unfinished, time.monotonic_ns())


def read_heartbeat(file: Path) -> Progress | None:
    """The supervisor's side; None where the worker leaves no beats."""
    try:
        num_steps, num_unfinished, _ = _FIELDS.unpack(file.read_bytes())
    except (OSError, struct.error):
        return None
    return Progress(num_steps, num_unfinished)
