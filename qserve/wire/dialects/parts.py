"""A chat's deltas as runs of one kind: thought, then text, then calls, each begun and ended once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

__all__ = ["BlockDelta", "BlockStart", "BlockStop", "Runs"]

Kind = Literal["thought", "text", "call"]


@dataclass(frozen=True)
class BlockStart:
    """A run begins; of a call, with its id and name."""

    index: int
    kind: Kind
    call_id: str = ""
    name: str = ""


@dataclass(frozen=True)
class BlockDelta:
    """More of the run that was begun last; `logprobs` of its tokens, where they are asked for."""

    text: str
    logprobs: Sequence[Any] = ()


@dataclass(frozen=True)
class BlockStop:
    """The run that was begun last is over."""


class Runs:
    """Splits the deltas of one choice."""

    def __init__(self) -> None:
        self._kind: Kind | None = None
        self._call = -1
        self._num_begun = 0

    def push(self, delta: Mapping[str, Any]) -> Iterator[BlockStart | BlockDelta | BlockStop]:
        """What this delta begins, adds and ends."""
        if thought := delta.get("reasoning"):
            yield from self._change_to("thought")
            yield BlockDelta(thought)
        if text := delta.get("content"):
            yield from self._change_to("text")
            yield BlockDelta(text, delta.get("logprobs", ()))
        for call in delta.get("tool_calls") or ():
            function = call["function"]
            if call["index"] != self._call or self._kind != "call":
                self._call = call["index"]
                yield from self._change_to("call", call["id"], function["name"])
            if arguments := function.get("arguments"):
                yield BlockDelta(arguments)

    def end(self) -> Iterator[BlockStop]:
        """Nothing more comes."""
        if self._kind is not None:
            self._kind = None
            yield BlockStop()

    def _change_to(self, kind: Kind, call_id: str = "", name: str = "") -> Iterator[BlockStart | BlockStop]:
        if kind == self._kind and kind != "call":
            return
        yield from self.end()
        self._kind = kind
        yield BlockStart(self._num_begun, kind, call_id, name)
        self._num_begun += 1
