"""From tokens to text as it may be shown: whole characters only, and nothing of a stop string."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tokenizers.decoders import DecodeStream

__all__ = ["StopStrings", "TextStream"]


class TextStream:
    """Decodes one token after the other; a character whose bytes are not complete waits for the rest of them."""

    def __init__(self, tokenizer: Any, *, skip_special_tokens: bool) -> None:
        self._tokenizer = tokenizer
        self._backend = tokenizer.backend_tokenizer
        self._skip = skip_special_tokens
        self._stream = DecodeStream(skip_special_tokens=skip_special_tokens)
        self._ids: list[int] = []
        self._num_sent = 0

    def push(self, token_id: int) -> str:
        """The text that this token completes; often one word, sometimes nothing yet."""
        self._ids.append(token_id)
        piece: str = self._stream.step(self._backend, token_id) or ""
        self._num_sent += len(piece)
        return piece

    def flush(self) -> str:
        """What is left when no more tokens come: an unfinished character shows as U+FFFD."""
        whole: str = self._backend.decode(self._ids, skip_special_tokens=self._skip)
        return whole[self._num_sent :]


class StopStrings:
    """Cuts at the first stop string, across tokens, and holds back what might become one."""

    def __init__(self, stops: Sequence[str], *, include: bool) -> None:
        self._stops = tuple(stops)
        self._include = include
        self._held = ""
        self._num_free = 0
        self.found: str | None = None
        """The one that was met."""

    def push(self, text: str, *, may_end: bool = True) -> tuple[str, bool]:
        """Text that may be shown now, and whether a stop string was met (then nothing may follow).

        One that ends in text which was pushed while the answer may not end (`may_end`) is a part of it.
        """
        if not self._stops:
            return text, False
        self._held += text
        if not may_end:
            self._num_free = len(self._held)
        if found := [(at, -len(stop), stop) for stop in self._stops if (at := self._find(stop)) >= 0]:
            position, _, stop = min(found)
            shown = self._held[: position + len(stop)] if self._include else self._held[:position]
            self._held = ""
            self.found = stop
            return shown, True
        keep = max(_overlap(self._held, stop) for stop in self._stops)
        split = len(self._held) - keep
        shown, self._held = self._held[:split], self._held[split:]
        self._num_free = max(0, self._num_free - split)
        return shown, False

    def flush(self) -> str:
        """What was held back and turned out not to be a stop string."""
        held, self._held = self._held, ""
        return held

    def _find(self, stop: str) -> int:
        """Where in what is held, with an end behind what is free; -1: nowhere."""
        return self._held.find(stop, max(0, self._num_free - len(stop) + 1))


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that a stop string begins with."""
    for length in range(min(len(text), len(stop) - 1), 0, -1):
        if stop.startswith(text[-length:]):
            return length
    return 0
