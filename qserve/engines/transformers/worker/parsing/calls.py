"""Where calls of tools begin and end in an answer's text, and what is content around them."""

from __future__ import annotations

from collections.abc import Callable

from qserve.engines.transformers.worker.parsing.parts import BlockReader, CallBegins, Content, Part, overlap

__all__ = ["CallReader"]

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"


class CallReader:
    """A block that is no call is shown as the text it is. Blanks between calls belong to nobody."""

    def __init__(self, new_block: Callable[[], BlockReader]) -> None:
        self._new_block = new_block
        self._block: BlockReader | None = None
        self._held = ""
        self._raw = ""  # of the block at hand
        self._is_call = False  # it has shown itself to be one
        self._has_called = False

    def push(self, text: str) -> list[Part]:
        """What this text completes."""
        self._held += text
        parts: list[Part] = []
        while True:
            more = self._outside() if self._block is None else self._inside(self._block)
            if more is None:
                return parts
            parts += more

    def _outside(self) -> list[Part] | None:
        before, opened, after = self._held.partition(_OPEN)
        if opened:
            self._block, self._raw, self._is_call = self._new_block(), "", False
            self._held = after
            return _content(before.rstrip())
        # Blanks may be those before a call, and an end that of its tag.
        keep = overlap(before, _OPEN)
        ready = before[: len(before) - keep].rstrip()
        if not ready or (self._has_called and not ready.strip()):
            return None
        self._held = before[len(ready) :]
        return _content(ready)

    def _inside(self, block: BlockReader) -> list[Part] | None:
        text, closed, after = self._held.partition(_CLOSE)
        if not closed:
            ready = text[: len(text) - overlap(text, _CLOSE)]
            if not ready:
                return None
            self._held = text[len(ready) :]
            return self._pushed(block, ready)
        parts = self._pushed(block, text)
        self._held = after
        if block.ends_within_text(_CLOSE):
            return [*parts, *self._pushed(block, _CLOSE)]
        self._raw += _CLOSE
        return [*parts, *self._closed(block)]

    def _pushed(self, block: BlockReader, text: str) -> list[Part]:
        self._raw += text
        parts = block.push(text)
        self._is_call = self._is_call or bool(parts)
        return parts

    def _closed(self, block: BlockReader) -> list[Part]:
        parts = block.close()
        self._block = None
        if self._is_call or any(isinstance(part, CallBegins) for part in parts):
            self._has_called = True
            return parts
        return _content(_OPEN + self._raw)

    def flush(self) -> list[Part]:
        """What was held back when no more text comes: a call may have been cut off."""
        if self._block is None:
            held, self._held = self._held, ""
            return [] if self._has_called and not held.strip() else _content(held)
        parts = self._pushed(self._block, self._held) if self._held else []
        self._held = ""
        if self._is_call:
            return parts
        return [*parts, *self._closed(self._block)]


def _content(text: str) -> list[Part]:
    return [Content(text)] if text else []
