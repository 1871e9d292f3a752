"""What a stream needs to be continued where its worker dies: the request, what the worker wrote of it, what was sent.

The worker's lines (`wire.worker_headers.JOURNAL`) are kept as they are. Another worker makes the answer from them once
more, from its first byte: as many bytes as the client has are held against a checksum of those, and are not sent again.
"""

from __future__ import annotations

from zlib import crc32

from qserve.units import MIB

__all__ = ["Journals", "OtherAnswer", "StreamJournal"]

_MARK, _NEXT = b":j", b"\n\n:j"
_PART_OF_ONE = 8


class OtherAnswer(Exception):
    """What the second worker says does not begin with what the client has."""


class Journals:
    """The memory of all streams' journals. A stream that finds no room there ends with its worker, as it did before."""

    def __init__(self, max_bytes: int = 64 * MIB) -> None:
        self._max_bytes = max_bytes
        self.num_bytes = 0

    def takes(self, num_bytes: int, held: int) -> bool:
        """Whether a stream that holds `held` may hold so many more; they are counted then."""
        if self.num_bytes + num_bytes > self._max_bytes or held + num_bytes > self._max_bytes // _PART_OF_ONE:
            return False
        self.num_bytes += num_bytes
        return True


class StreamJournal:
    """Of one stream. `close` it."""

    __slots__ = ("_again", "_body", "_checksum", "_held", "_journals", "_lines", "_num_sent", "_to_skip")

    def __init__(self, journals: Journals) -> None:
        self._journals = journals
        self._body = b""
        self._lines: bytearray | None = bytearray()
        self._num_sent = self._checksum = self._held = 0
        self._to_skip = self._again = 0

    @property
    def can_continue(self) -> bool:
        """Whether all is there that another worker needs."""
        return bool(self._body and self._lines)

    def keep(self, body: bytes) -> None:
        """The request, when its answer begins."""
        if self._count(len(body)):
            self._body = body

    def close(self) -> None:
        """Give back its memory."""
        self._journals.num_bytes -= self._held
        self._held, self._body, self._lines = 0, b"", None

    def read(self, events: bytes) -> bytes:
        """Of whole events, what the client has not seen, without the worker's lines. Raises OtherAnswer."""
        if _MARK in events:
            events = self._without_lines(events)
        if not self._to_skip:
            return events
        seen, events = events[: self._to_skip], events[self._to_skip :]
        self._to_skip -= len(seen)
        self._again = crc32(seen, self._again)
        if not self._to_skip and self._again != self._checksum:
            raise OtherAnswer("the answer of another worker differs from what was sent")
        return events

    def sent(self, events: bytes) -> None:
        """The client has these, too."""
        self._num_sent += len(events)
        self._checksum = crc32(events, self._checksum)

    def begin_again(self) -> tuple[bytes, int]:
        """A body for another worker, which ends with so many bytes of journal."""
        self._to_skip, self._again = self._num_sent, 0
        return self._body + bytes(self._lines or b""), len(self._lines or b"")

    def check_end(self) -> None:
        """Raises OtherAnswer where the second answer is shorter than what was sent of the first."""
        if self._to_skip:
            raise OtherAnswer("the answer of another worker is shorter than what was sent")

    def _without_lines(self, events: bytes) -> bytes:
        if _NEXT in events:
            return b"".join(map(self._without_lines, _events(events)))
        while events.startswith(_MARK):
            line, _, events = events.partition(b"\n")
            self._note(line + b"\n")
        return events

    def _note(self, line: bytes) -> None:
        if self._lines is None:
            return
        if self._count(len(line)):
            self._lines += line
        else:
            self.close()

    def _count(self, num_bytes: int) -> bool:
        is_taken = self._journals.takes(num_bytes, self._held)
        self._held += num_bytes * is_taken
        return is_taken


def _events(events: bytes) -> list[bytes]:
    """One by one."""
    *whole, rest = events.split(b"\n\n")
    return [*(event + b"\n\n" for event in whole), *((rest,) if rest else ())]
