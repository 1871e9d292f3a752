"""The text of a custom tool out of the arguments of the function that it is to the model, piece by piece."""

from __future__ import annotations

import json
import re

__all__ = ["CustomInput"]

_HEAD = re.compile(r'\s*\{\s*"input"\s*:\s*"')
# Whole characters as JSON writes them; the first half of a pair waits for the second.
_CHARS = re.compile(
    r'(?:[^"\\]|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[0-9a-fA-F]{4}|\\u(?![dD][89abAB])[0-9a-fA-F]{4}|\\[^u])*'
)


class CustomInput:
    """`push` each piece of `{"input": "…"}`; what it says is text as soon as its characters are whole."""

    def __init__(self) -> None:
        self.text = ""
        self._held = ""
        self._is_begun = False

    def push(self, arguments: str) -> str:
        """More of the text."""
        self._held += arguments
        if not self._is_begun:
            if (head := _HEAD.match(self._held)) is None:
                return ""
            self._is_begun, self._held = True, self._held[head.end() :]
        whole = _CHARS.match(self._held)
        assert whole is not None, "the pattern matches an empty text, too"
        self._held = self._held[whole.end() :]
        # Not strict: a model may write line breaks unescaped.
        more: str = json.loads(f'"{whole[0]}"', strict=False)
        self.text += more
        return more
