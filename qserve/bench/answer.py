"""Responses of the server: whole bodies, and event streams with the arrival time of each chunk.

Nothing is parsed while tokens arrive, but for the first event and those without choices: an arrival costs a search for
a few bytes. JSON escapes quotes within strings, so text can't be taken for a field.
"""

from __future__ import annotations

import json
from typing import Any

from qserve.client.stream import EventSplitter, data_of

__all__ = ["StreamAnswer", "WholeAnswer"]

_TOKEN = (b'"choices":[{', b'"choices": [{')
_USAGE = b'"usage"'
_TEXT_FIELDS = ("content", "reasoning_content", "reasoning", "tool_calls", "refusal")


class WholeAnswer:
    """A body in one piece."""

    def __init__(self) -> None:
        self.status = 0
        self.content_type = ""
        self._parts: list[bytes] = []

    def take(self, data: bytes, now_s: float) -> None:
        """The next bytes of the body, and when they came."""
        self._parts.append(data)

    @property
    def body(self) -> bytes:
        return b"".join(self._parts)


class StreamAnswer(WholeAnswer):
    """Server-sent events of a completion.

    Attributes:
        announced_s: when the first event with choices came; 0.0 while there is none.
        arrivals_s: when each event with a token came.
        usage: the server's counts, {} where it told none.
        error: the message of an error event, "" without one.
        is_done: [DONE] was seen.
    """

    def __init__(self) -> None:
        super().__init__()
        self.announced_s = 0.0
        self.arrivals_s: list[float] = []
        self.usage: dict[str, Any] = {}
        self.error = ""
        self.is_done = False
        self.num_events = 0
        self._tokens: list[bytes] = []
        self._events = EventSplitter()

    def take(self, data: bytes, now_s: float) -> None:
        """Times the events that are complete with these bytes."""
        if self.status != 200 or "event-stream" not in self.content_type:
            super().take(data, now_s)
            return
        for event in self._events.feed(data):
            if self.arrivals_s and (_TOKEN[0] in event or _TOKEN[1] in event):
                self.arrivals_s.append(now_s)
                self._tokens.append(event)
            elif event:
                self._look_at(event, now_s)

    def finish(self) -> None:
        """At the end of the body: an event that lacks its blank line counts, a usage beside the last token too."""
        if (rest := self._events.rest()).strip():
            self._look_at(rest, self.arrivals_s[-1] if self.arrivals_s else 0.0)
        if not self.usage and self._tokens and _USAGE in self._tokens[-1]:
            self.usage = (_payload(self._tokens[-1]) or {}).get("usage") or {}

    def text(self) -> str:
        """What was generated; for servers that do not count tokens themselves."""
        choices = [((_payload(event) or {}).get("choices") or [{}])[0] for event in self._tokens]
        return "".join(str(one.get("text") or (one.get("delta") or {}).get("content") or "") for one in choices)

    def _look_at(self, event: bytes, now_s: float) -> None:
        """An event before the first token, or one without choices."""
        payload = _payload(event)
        if payload is None:
            self.is_done = self.is_done or b"[DONE]" in event
            return
        self.num_events += 1
        if payload.get("error"):
            error = payload["error"]
            self.error = str(error.get("message") or error) if isinstance(error, dict) else str(error)
        elif payload.get("choices"):
            self.announced_s = self.announced_s or now_s
            if not _is_announcement(payload["choices"][0]):
                self.arrivals_s.append(now_s)
                self._tokens.append(event)
        elif payload.get("usage"):
            self.usage = payload["usage"]


def _payload(event: bytes) -> dict[str, Any] | None:
    """The JSON object of an event; None for comments, [DONE] and what is not valid JSON."""
    try:
        payload = json.loads(data_of(event))
    except ValueError:
        return None
    return payload if isinstance(payload, dict) else None


def _is_announcement(choice: dict[str, Any]) -> bool:
    """A chat chunk that only says who speaks: some servers send it before there is a token."""
    delta = choice.get("delta")
    return (
        isinstance(delta, dict)
        and "role" in delta
        and not choice.get("finish_reason")
        and not any(delta.get(name) for name in _TEXT_FIELDS)
    )
