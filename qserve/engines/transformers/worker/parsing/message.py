"""One choice of an answer while it is written: its text becomes thought, content and calls of tools."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from qserve.engines.transformers.worker.parsing.calls import CallReader
from qserve.engines.transformers.worker.parsing.parts import (
    Arguments,
    BlockReader,
    CallBegins,
    Content,
    Part,
    Reasoning,
)
from qserve.engines.transformers.worker.parsing.thoughts import ThoughtReader
from qserve.wire.derived_ids import derived_id

__all__ = ["MessageReader", "MessageWriter", "ReadingRules"]


@dataclass(frozen=True)
class ReadingRules:
    """How the answers to one request are read.

    Attributes:
        thinks: the model knows thoughts.
        within_thought: the prompt ends in an open one.
        new_block: reads one call; None: no tools were offered.
    """

    thinks: bool = False
    within_thought: bool = False
    new_block: Callable[[], BlockReader] | None = None


class MessageReader:
    """From text to parts."""

    def __init__(self, rules: ReadingRules) -> None:
        may_call = rules.new_block is not None
        self._thoughts = ThoughtReader(within=rules.within_thought, may_call=may_call) if rules.thinks else None
        self._calls = CallReader(rules.new_block) if rules.new_block is not None else None

    @property
    def is_thinking(self) -> bool:
        """Whether the latest text was thought."""
        return self._thoughts is not None and self._thoughts.is_thinking

    def push(self, text: str) -> list[Part]:
        """What this text completes."""
        thought, answer = self._thoughts.push(text) if self._thoughts is not None else ("", text)
        return [*_reasoning(thought), *self._of_answer(answer)]

    def flush(self) -> list[Part]:
        """What was held back when no more text comes."""
        thought, answer = self._thoughts.flush() if self._thoughts is not None else ("", "")
        parts = [*_reasoning(thought), *self._of_answer(answer)]
        return parts if self._calls is None else [*parts, *self._calls.flush()]

    def _of_answer(self, text: str) -> list[Part]:
        if not text:
            return []
        return self._calls.push(text) if self._calls is not None else [Content(text)]


def _reasoning(text: str) -> list[Part]:
    return [Reasoning(text)] if text else []


@dataclass
class MessageWriter:
    """From parts to a message, whole (`message`) or as the deltas of a stream (`delta`)."""

    thinks: bool
    shows_thoughts: bool = True
    content: str = ""
    reasoning: str = ""
    calls: list[dict[str, Any]] = field(default_factory=list)
    answer_id: str = field(default_factory=lambda: uuid.uuid4().hex)  # from which those of calls are made

    def delta(self, parts: list[Part]) -> dict[str, Any]:
        """What these parts add, as OpenAI streams it; empty for nothing."""
        delta: dict[str, Any] = {}
        for part in parts:
            if isinstance(part, Content):
                self.content += part.text
                delta["content"] = delta.get("content", "") + part.text
            elif isinstance(part, Reasoning):
                self._add_thought(part.text, delta)
            else:
                _join(delta.setdefault("tool_calls", []), self._add_call(part))
        return delta

    def _add_thought(self, text: str, delta: dict[str, Any]) -> None:
        self.reasoning += text
        if self.shows_thoughts:
            # Two names are in use: DeepSeek's, which most clients read, and vLLM's.
            delta["reasoning_content"] = delta["reasoning"] = delta.get("reasoning", "") + text

    def _add_call(self, part: CallBegins | Arguments) -> dict[str, Any]:
        if isinstance(part, CallBegins):
            call_id = f"call_{derived_id(self.answer_id, len(self.calls))[:24]}"
            self.calls.append({"id": call_id, "type": "function", "function": {"name": part.name, "arguments": ""}})
            function = {"name": part.name, "arguments": ""}
            return {"index": len(self.calls) - 1, "id": call_id, "type": "function", "function": function}
        self.calls[-1]["function"]["arguments"] += part.text
        return {"index": len(self.calls) - 1, "function": {"arguments": part.text}}

    def message(self) -> dict[str, Any]:
        """The whole of it."""
        message: dict[str, Any] = {"role": "assistant", "content": self.content, "refusal": None}
        if self.thinks:
            shown = self.reasoning if self.shows_thoughts and self.reasoning else None
            message |= {"reasoning_content": shown, "reasoning": shown}
        if self.calls:
            message |= {"content": self.content or None, "tool_calls": self.calls}
        return message


def _join(calls: list[dict[str, Any]], more: dict[str, Any]) -> None:
    """Adds to the calls of a chunk, of which each stands there once: clients take a second entry for another call."""
    if calls and calls[-1]["index"] == more["index"]:
        calls[-1]["function"]["arguments"] += more["function"]["arguments"]
    else:
        calls.append(more)
