"""Server-sent events as objects, from the bytes of a body that come in pieces of any size."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

__all__ = ["EventSplitter", "EventStream", "NoEvent", "data_of"]

_DONE = b"[DONE]"


class NoEvent(ValueError):
    """The data of an event are not a JSON object. `data`: what they are; `is_json`: another JSON value."""

    def __init__(self, data: bytes, *, is_json: bool) -> None:
        super().__init__("an event is not a JSON object" if is_json else "an event is cut off or not JSON")
        self.data, self.is_json = data, is_json


class EventSplitter:
    """Cuts the bytes of a body into its events, each without the blank line at its end."""

    def __init__(self) -> None:
        self._held = b""

    def feed(self, chunk: bytes) -> list[bytes]:
        """The events that are whole with these bytes."""
        data = self._held + chunk if self._held else chunk
        if b"\r" in data:
            data = data.replace(b"\r\n", b"\n")
        *events, self._held = data.split(b"\n\n")
        return events

    def rest(self) -> bytes:
        """What the body ended with: an event that lacks its blank line, or blanks."""
        held, self._held = self._held, b""
        return held


class EventStream:
    """The objects in the events of one body, without comments and the last `[DONE]`.

    Attributes:
        is_done: `[DONE]` was seen. What comes behind it is dropped.
    """

    def __init__(self) -> None:
        self.is_done = False
        self._splitter = EventSplitter()

    def feed(self, chunk: bytes) -> Iterator[dict[str, Any]]:
        """The objects that are whole with these bytes. Raises NoEvent."""
        return self._objects(self._splitter.feed(chunk))

    def end(self) -> Iterator[dict[str, Any]]:
        """The object at the end of a body that lacks its last blank line. Raises NoEvent where it is cut off."""
        return self._objects([self._splitter.rest()])

    def _objects(self, events: list[bytes]) -> Iterator[dict[str, Any]]:
        for event in events:
            data = data_of(event)
            self.is_done = self.is_done or data == _DONE
            if data and not self.is_done:
                yield _object(data)


def data_of(event: bytes) -> bytes:
    """The data of one event, its lines joined; b"" for a comment."""
    lines = [line[5:].strip() for line in event.split(b"\n") if line.startswith(b"data:")]
    return b"\n".join(lines)


def _object(data: bytes) -> dict[str, Any]:
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        raise NoEvent(data, is_json=False) from None
    if not isinstance(value, dict):
        raise NoEvent(data, is_json=True)
    return value
