"""Splits and counts server-sent events as bytes, without parsing their content."""

from __future__ import annotations

import re

__all__ = ["MAX_HELD_BYTES", "EventCutter", "count_announcements", "count_closings", "count_events", "count_named"]

# A longer event passes through in pieces: memory must stay bounded.
MAX_HELD_BYTES = 1 << 20

# The first event of a chat stream, one per choice: it names the role before there is a token. Inside a JSON string the
# quotes would be escaped.
_ANNOUNCEMENT = re.compile(rb'"role"\s*:\s*"assistant"\s*,\s*"content"\s*:\s*(?:""|null)')

# What follows the last token: usage alone, and the end.
_CLOSING = re.compile(rb'"choices"\s*:\s*\[\s*\]|^data: ?\[DONE\]', re.MULTILINE)

# Of the Responses API and of Anthropic's Messages, all but deltas: they begin and end an item or the answer. The name
# has a line of its own, so content never matches.
_NAMED = re.compile(
    rb"^event: (?:response\.\S+(?<!\.delta)|message_start|message_delta|message_stop"
    rb"|content_block_start|content_block_stop|ping)\r?$",
    re.MULTILINE,
)

_ENDS = (b"\n\n", b"\r\n\r\n")


class EventCutter:
    """Cuts a byte stream at the ends of its events, so that a stream that breaks off never ends in half an event.

    Joined together, everything that `feed` returned and the last `rest` are the bytes that went in.
    """

    __slots__ = ("_held",)

    def __init__(self) -> None:
        self._held = b""

    def feed(self, chunk: bytes) -> bytes:
        """The whole events that are there now, b"" if there are none; the beginning of the next one is held back."""
        if not self._held and chunk.endswith(_ENDS):
            return chunk  # what an engine writes: one whole event at a time
        data = self._held + chunk
        cut = max(data.rfind(end) + len(end) if end in data else 0 for end in _ENDS)
        if len(data) - cut > MAX_HELD_BYTES:
            cut = len(data)
        self._held = data[cut:]
        return data[:cut]

    def rest(self) -> bytes:
        """The remaining bytes of a stream that ended."""
        held, self._held = self._held, b""
        return held


def count_events(events: bytes) -> int:
    """How many events with data begin in `events`, which starts where a line starts.

    JSON holds no raw line break, so a `data:` after one is a field name and never content. Comments (pings) do not
    count; an event whose data is written on several lines counts once a line, which no OpenAI server does.
    """
    return events.count(b"\ndata:") + events.startswith(b"data:")


def count_announcements(events: bytes) -> int:
    """Number of events of a chat that only name the role."""
    return len(_ANNOUNCEMENT.findall(events))


def count_closings(events: bytes) -> int:
    """Number of events of a chat or completion that come after its last token."""
    return len(_CLOSING.findall(events))


def count_named(events: bytes) -> int:
    """Number of events whose name says that they hold no token, wherever they are in the stream."""
    return len(_NAMED.findall(events)) if b"event: " in events else 0  # a chat's tokens do without the search
