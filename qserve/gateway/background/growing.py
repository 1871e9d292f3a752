"""One response while it grows: the worker's events, numbered anew under an id of its own, and the object."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from qserve.wire.errors import ApiError
from qserve.wire.sse import named_event

__all__ = ["ENDED", "GrowingResponse", "fields_of"]

ENDED: Final = frozenset({"completed", "incomplete", "failed", "cancelled"})
_EVENT_BYTES = 64
"""What a list entry and a `bytes` object take beside their content."""

_raw = msgspec.json.Decoder(dict[str, msgspec.Raw])
_text = msgspec.json.Decoder(str)
_any = msgspec.json.Decoder()
_encode = msgspec.json.encode
# What the object says from its first moment on, as the request gave it; else this.
_ECHOED: Mapping[str, Any] = {
    "model": "",
    "instructions": None,
    "max_output_tokens": None,
    "max_tool_calls": None,
    "metadata": {},
    "parallel_tool_calls": True,
    "previous_response_id": None,
    "reasoning": None,
    "temperature": None,
    "text": {"format": {"type": "text"}},
    "tool_choice": "auto",
    "tools": [],
    "top_p": None,
    "truncation": "disabled",
    "user": None,
}
_UNKNOWN_YET: Mapping[str, Any] = {"error": None, "incomplete_details": None, "usage": None, "output": []}
# By which the text of an item grows.
_GROWS = frozenset(
    {
        "response.function_call_arguments.delta",
        "response.custom_tool_call_input.delta",
        "response.output_text.delta",
        "response.reasoning_text.delta",
    }
)
_DONE = b"[DONE]"


def fields_of(body: bytes) -> dict[str, msgspec.Raw]:
    """The members of a JSON object, not parsed. Raises msgspec.MsgspecError for anything else."""
    return _raw.decode(body)


class GrowingResponse:
    """`take` each event of the worker; `cancel` or `fail` ends it from outside. Pure.

    Attributes:
        events: all so far, whole server-sent events; the place of each is its `sequence_number`.
        status: `queued`, `in_progress`, or one of `ENDED`.
    """

    def __init__(self, response_id: str, created_s: int, asked: Mapping[str, msgspec.Raw]) -> None:
        """`asked`: the members of the request's body."""
        self.id = response_id
        self.status = "queued"
        self.events: list[bytes] = []
        self._own = {"id": response_id, "object": "response", "created_at": created_s, "background": True}
        given = {name: asked[name] for name in _ECHOED if name in asked and bytes(asked[name]) != b"null"}
        self._head: dict[str, Any] = {**_ECHOED, **_kept(given), **_UNKNOWN_YET}
        self._done: list[msgspec.Raw] = []
        self._item: dict[str, Any] | None = None
        self._pieces: list[str] = []
        self._event_bytes = self._item_bytes = 0
        self._head_bytes = len(self.document())
        self._add("response.created", {"response": self._told()})
        self._add("response.queued", {"response": self._told()})

    @property
    def has_ended(self) -> bool:
        """Whether nothing more comes."""
        return self.status in ENDED

    @property
    def num_bytes(self) -> int:
        """What it holds in memory."""
        return self._event_bytes + self._head_bytes + self._item_bytes

    def document(self) -> bytes:
        """The response object as it stands."""
        return _encode(self._told())

    @staticmethod
    def cost_of(event: bytes) -> int:
        """The most that `take` of this event adds to `num_bytes`: it is kept, and what it says of an item as well."""
        return 2 * (len(event) + _EVENT_BYTES)

    def take(self, event: bytes) -> None:
        """One whole event of the worker; comments are none."""
        data = next((line[5:].strip() for line in event.split(b"\n") if line.startswith(b"data:")), _DONE)
        if data == _DONE or self.has_ended:
            return
        fields = _raw.decode(data)
        kind = _text.decode(fields["type"]) if "type" in fields else "error"
        if kind == "error":
            told = _any.decode(fields["error"]) if "error" in fields else {}
            self._end_with(str(told.get("code") or "worker_error"), str(told.get("message") or "the worker failed"))
        elif kind not in ("response.created", "response.queued"):  # it has these of its own
            self._follow(kind, fields)
            self._add(kind, fields)

    def fail(self, error: ApiError, *, drops_output: bool = False) -> None:
        """It ends with an error. `drops_output`: what there is of the answer is left out of the object."""
        if drops_output:
            self._forget_items()
        self._end_with(error.code, error.message)

    def cancel(self) -> None:
        """The client wants no more of it."""
        if not self.has_ended:
            self.status = "cancelled"
            self._add("response.cancelled", {"response": self._told()})

    def _end_with(self, code: str, message: str) -> None:
        if not self.has_ended:
            self.status = "failed"
            self._head["error"] = {"code": code, "message": message}
            self._add("response.failed", {"response": self._told()})

    def _told(self) -> dict[str, Any]:
        told = {**self._head, **self._own, "store": True, "status": self.status}
        if self._done or self._item is not None:
            told["output"] = [*self._done, *([] if self._item is None else [self._grown(self._item)])]
        return told

    def _grown(self, item: dict[str, Any]) -> dict[str, Any]:
        """The item that is being written, with its text so far."""
        text = "".join(self._pieces)
        more: dict[str, Any] = {}
        if text and item.get("content"):
            more["content"] = [*item["content"][:-1], {**item["content"][-1], "text": text}]
        elif text:
            more |= {name: text for name in ("arguments", "input") if name in item}
        return {**item, **more, "status": "incomplete" if self.has_ended else "in_progress"}

    def _follow(self, kind: str, fields: dict[str, msgspec.Raw]) -> None:
        """What an event changes of the object; a `response` in it becomes this one."""
        item = self._item
        if "response" in fields:
            self._take_head(_raw.decode(fields["response"]), kind.removeprefix("response."))
            fields["response"] = msgspec.Raw(_encode(self._told()))
        elif kind == "response.output_item.added":
            self._item, self._pieces = _any.decode(fields["item"]), []
        elif kind == "response.output_item.done":
            self._done.append(msgspec.Raw(bytes(fields["item"])))
            self._item, self._pieces = None, []
            self._item_bytes = sum(map(_size, self._done))
        elif item is not None and kind.endswith("_part.added"):
            item["content"], self._pieces = [*(item.get("content") or ()), _any.decode(fields["part"])], []
        elif item is not None and kind.endswith("_part.done") and item.get("content"):
            item["content"][-1], self._pieces = _any.decode(fields["part"]), []
        elif item is not None and kind in _GROWS:
            self._pieces.append(_text.decode(fields["delta"]))
            self._item_bytes += _size(fields["delta"])

    def _take_head(self, head: dict[str, msgspec.Raw], status: str) -> None:
        self.status = status
        if self.has_ended:
            self._forget_items()
        self._head = _kept(head)
        self._head_bytes = len(self.document())

    def _forget_items(self) -> None:
        self._done, self._item, self._pieces, self._item_bytes = [], None, [], 0

    def _add(self, kind: str, fields: Mapping[str, Any]) -> None:
        others = {name: value for name, value in fields.items() if name not in ("type", "sequence_number")}
        event = named_event(kind, {"sequence_number": len(self.events), **others})
        self.events.append(event)
        self._event_bytes += len(event) + _EVENT_BYTES


def _kept(fields: Mapping[str, msgspec.Raw]) -> dict[str, msgspec.Raw]:
    """Without the message that they were read from."""
    return {name: msgspec.Raw(bytes(value)) for name, value in fields.items()}


def _size(value: msgspec.Raw) -> int:
    return len(memoryview(value))
