"""What a stream needs to be continued where its worker dies: the request, what the worker wrote of it, what was sent.

The worker's lines (`wire.worker_headers.JOURNAL`) are kept as they are. Another worker makes the answer from them once
more, from its first byte: as many bytes as the client has are held against a checksum of those, and are not sent again.
Where figures in it may differ in their last digits, the worker says so and holds the tokens against what it wrote; the
client's events are counted then.
"""

from __future__ import annotations

from zlib import crc32

from qserve.units import MIB

__all__ = ["Journals", "OtherAnswer", "StreamJournal"]

_MARK, _NEXT, _INEXACT = b":j", b"\n\n:j", b":j~"
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

    __slots__ = (
        "_again",
        "_body",
        "_checksum",
        "_held",
        "_is_exact",
        "_journals",
        "_lines",
        "_num_events",
        "_num_sent",
        "_to_skip",
    )

    def __init__(self, journals: Journals) -> None:
        self._journals = journals
        self._body = b""
        self._lines: bytearray | None = bytearray()
        self._num_sent = self._num_events = self._checksum = self._held = 0
        self._is_exact = True
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
        if events.startswith(_MARK) or _NEXT in events:
            events = self._without_lines(events)
        if not self._to_skip:
            return events
        if not self._is_exact:
            return self._without_seen_events(events)
        seen, events = events[: self._to_skip], events[self._to_skip :]
        self._to_skip -= len(seen)
        self._again = crc32(seen, self._again)
        if not self._to_skip and self._again != self._checksum:
            raise OtherAnswer("the answer of another worker differs from what was sent")
        return events

    def sent(self, events: bytes) -> None:
        """The client has these, too."""
        self._num_sent += len(events)
        if not self._is_exact:
            self._num_events += events.count(b"\n\n")
        self._checksum = crc32(events, self._checksum)

    def begin_again(self) -> tuple[bytes, int]:
        """A body for another worker, which ends with so many bytes of journal."""
        self._to_skip, self._again = self._num_sent if self._is_exact else self._num_events, 0
        return self._body + bytes(self._lines or b""), len(self._lines or b"")

    def check_end(self) -> None:
        """Raises OtherAnswer where the second answer is shorter than what was sent of the first."""
        if self._to_skip:
            raise OtherAnswer("the answer of another worker is shorter than what was sent")

    def _without_seen_events(self, events: bytes) -> bytes:
        while self._to_skip and events:
            _, _, events = events.partition(b"\n\n")
            self._to_skip -= 1
        return events

    def _without_lines(self, events: bytes) -> bytes:
        first, *others = events.split(_NEXT)
        return b"\n\n".join(
            [self._without_first_lines(first), *(self._without_first_lines(_MARK + one) for one in others)]
        )

    def _without_first_lines(self, events: bytes) -> bytes:
        while events.startswith(_MARK):
            end = events.index(b"\n") + 1
            self._note(events[:end])
            events = events[end:]
        return events

    def _note(self, line: bytes) -> None:
        if self._lines is None:
            return
        if not self._lines:
            self._is_exact = not line.startswith(_INEXACT)
        if self._count(len(line)):
            self._lines += line
        else:
            self.close()

    def _count(self, num_bytes: int) -> bool:
        is_taken = self._journals.takes(num_bytes, self._held)
        self._held += num_bytes * is_taken
        return is_taken
