"""`{"name": "f", "arguments": {…}}`: the call of Qwen2.5, QwQ and Qwen3."""

from __future__ import annotations

import json
import re

from qserve.engines.transformers.worker.parsing.parts import Arguments, CallBegins, Part

__all__ = ["HermesCall"]

# What every model writes that was trained on it; another order is read when the block is complete.
_HEAD = re.compile(r'\s*\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)*")\s*,\s*"(?:arguments|parameters)"\s*:\s*(?=[{\["\w-])')
_MAX_HEAD_CHARS = 1024


class HermesCall:
    """Arguments are passed on as they are written, up to the bracket that closes them."""

    def __init__(self) -> None:
        self._text = ""
        self._has_begun = False
        self._depth = 0
        self._in_string = False
        self._is_escaped = False
        self._is_complete = False

    def push(self, text: str) -> list[Part]:
        if self._has_begun:
            return self._arguments(text)
        self._text += text
        head = _HEAD.match(self._text) if len(self._text) < _MAX_HEAD_CHARS + len(text) else None
        if head is None or self._text[head.end()] != "{":
            return []
        self._has_begun = True
        return [CallBegins(json.loads(head[1])), *self._arguments(self._text[head.end() :])]

    def ends_within_text(self, end: str) -> bool:
        return self._in_string

    def _arguments(self, text: str) -> list[Part]:
        if self._is_complete:
            return []
        for position, char in enumerate(text):
            if self._in_string:
                self._see_in_string(char)
            elif char == '"':
                self._in_string = True
            elif char in "{[":
                self._depth += 1
            elif char in "}]":
                self._depth -= 1
                if self._depth == 0:
                    self._is_complete = True
                    return [Arguments(text[: position + 1])]
        return [Arguments(text)] if text else []

    def _see_in_string(self, char: str) -> None:
        if self._is_escaped:
            self._is_escaped = False
        elif char == "\\":
            self._is_escaped = True
        elif char == '"':
            self._in_string = False

    def close(self) -> list[Part]:
        if self._has_begun:
            return []
        try:
            call = json.loads(self._text)
            arguments = call.get("arguments", call.get("parameters", {}))
            written = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
            return [CallBegins(str(call["name"])), Arguments(written)]
        except (ValueError, KeyError, AttributeError, RecursionError):
            return []
