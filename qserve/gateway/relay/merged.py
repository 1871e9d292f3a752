"""The answers to the portions of a request as the one answer that its client asked for, whole or as events."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from qserve.gateway.relay.portions import Portion
from qserve.wire.sse import DONE

__all__ = ["MergedAnswer"]

_Fields = dict[str, msgspec.Raw]
_whole = msgspec.json.Decoder(_Fields)
_choices = msgspec.json.Decoder(list[_Fields])
_usage = msgspec.json.Decoder(dict[str, Any] | None)
_DATA = b"data:"
_encode = msgspec.json.encode
# One answer has one of each; that of the first portion.
_NAMES = ("id", "created", "request_id")


class MergedAnswer:
    """Grows by what comes of each portion. Values stay as the engine wrote them; places and counts are put right."""

    def __init__(self) -> None:
        self._named: _Fields = {}
        self._usages: dict[Portion, Mapping[str, Any]] = {}
        self._choices: dict[int, bytes] = {}
        self._heads: dict[int, _Fields] = {}
        self._end: _Fields | None = None
        self.has_failed = False
        """An event of an error has come: nothing may follow it."""

    def add(self, portion: Portion, answer: bytes) -> None:
        """The whole answer to a portion."""
        head = _whole.decode(answer)
        for choice in self._placed(portion, head):
            self._choices[portion.choice] = _encode(choice)
        self._count(portion, head)
        self._heads[portion.choice] = {**head, "choices": msgspec.Raw(b"[]")}

    def whole(self) -> bytes:
        """The answer, when all have come."""
        head = self._heads[min(self._heads)]
        head["choices"] = msgspec.Raw(b"[" + b",".join(self._choices[place] for place in sorted(self._choices)) + b"]")
        if self._usages:
            head["usage"] = msgspec.Raw(_encode(self._total()))
        return _encode(head)

    def events(self, portion: Portion, events: bytes) -> bytes:
        """What its whole events are in the stream of all."""
        return b"".join(self._event(portion, line) for line in events.splitlines(keepends=True) if line.strip())

    def last_events(self) -> bytes:
        """The end of the stream."""
        if self.has_failed:
            return b""
        if self._end is None:
            return DONE
        return self._written({**self._end, "usage": msgspec.Raw(_encode(self._total()))}) + DONE

    def _event(self, portion: Portion, line: bytes) -> bytes:
        if not line.startswith(_DATA):
            return line.rstrip() + b"\n\n"  # a comment
        data = line[len(_DATA) :].strip()
        if data == DONE[len(_DATA) :].strip():
            return b""
        event = _whole.decode(data)
        if "error" in event:
            self.has_failed = True
            return _DATA + b" " + data + b"\n\n"
        event["choices"] = msgspec.Raw(_encode(placed := list(self._placed(portion, event))))
        self._count(portion, event)
        if portion in self._usages and "usage" in event and _usage.decode(event["usage"]) is not None:
            if not placed:
                self._end = event
                return b""
            event["usage"] = msgspec.Raw(_encode(self._total()))
        return self._written(event)

    def _written(self, event: _Fields) -> bytes:
        for name in _NAMES:
            if name in event:
                event[name] = self._named.setdefault(name, event[name])
        return _DATA + b" " + _encode(event) + b"\n\n"

    @staticmethod
    def _placed(portion: Portion, answer: _Fields) -> Iterator[_Fields]:
        for choice in _choices.decode(answer.get("choices", b"[]")):
            yield {**choice, "index": msgspec.Raw(b"%d" % portion.choice)}

    def _count(self, portion: Portion, answer: _Fields) -> None:
        if "usage" in answer and (usage := _usage.decode(answer["usage"])) is not None:
            self._usages[portion] = usage

    def _total(self) -> Mapping[str, Any]:
        """Of all portions so far; a prompt's tokens count once, however many answers it has."""
        total: dict[str, Any] = {}
        for portion, usage in self._usages.items():
            _add(total, usage, with_prompt=portion.is_first)
        if "total_tokens" in total:
            total["total_tokens"] = total.get("prompt_tokens", 0) + total.get("completion_tokens", 0)
        return total


def _add(total: dict[str, Any], usage: Mapping[str, Any], *, with_prompt: bool) -> None:
    """Add the counts of `usage` to `total`, those of its prompt as nothing where they were added already."""
    for name, value in usage.items():
        _add_value(total, name, value, share=1 if with_prompt or not name.startswith("prompt") else 0)


def _add_value(total: dict[str, Any], name: str, value: object, *, share: int) -> None:
    if isinstance(value, dict):
        inner = total[name] = total.get(name) or {}
        for key, one in value.items():
            _add_value(inner, key, one, share=share)
    elif isinstance(value, int):
        total[name] = (total.get(name) or 0) + share * value
    else:
        total.setdefault(name, value)
