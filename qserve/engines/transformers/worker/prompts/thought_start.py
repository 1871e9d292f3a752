"""Where an answer begins: before, within or after a thought."""

from __future__ import annotations

from typing import Literal

__all__ = ["ThoughtStart", "thought_start"]

ThoughtStart = Literal["open", "closed", "unknown"]
"""`open`: the prompt ends within a thought; `closed`: after one; `unknown`: whether there is one, the model decides."""

_OPEN, _CLOSE = "<think>", "</think>"


def thought_start(text: str) -> ThoughtStart:
    """Of what the prompt ends with: the template's own beginning of an answer, or the message that is continued."""
    end = text.rstrip()
    if end.endswith(_CLOSE):
        return "closed"
    if end.endswith(_OPEN):
        return "open"
    begins = text.lstrip().startswith(_OPEN)  # a message that is continued
    return ("closed" if _CLOSE in text else "open") if begins else "unknown"
