"""System turns at the beginning of a conversation as one text, for chat templates that take one such turn."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from typing import Any

__all__ = ["one_system"]

_ROLES = ("system", "developer")


def one_system(turns: Sequence[Any], instructions: str = "") -> tuple[str, Sequence[Any]] | None:
    """The text of `instructions` and of the system turns at the beginning, and the turns after these.

    None where there is one text or none, or where a turn holds anything but text.
    """
    first = list(takewhile(_is_system, turns))
    texts = [_text_of(turn.get("content")) for turn in first]
    said = [text for text in (instructions or None, *texts) if text is not None]
    if None in texts or len(said) < 2:
        return None
    return "\n\n".join(said), turns[len(first) :]


def _is_system(turn: Any) -> bool:
    return isinstance(turn, dict) and turn.get("role") in _ROLES and turn.get("type") in (None, "message")


def _text_of(content: Any) -> str | None:
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    texts = [part["text"] for part in parts if isinstance(part, dict) and isinstance(part.get("text"), str)]
    return "".join(texts) if texts and len(texts) == len(parts) else None
