"""Which tokens open and close a thought, by the tokenizer and its chat template."""

from __future__ import annotations

from typing import Any

from qserve.hub.chat_template import thinking_template

__all__ = ["thought_tags"]

_OPEN, _CLOSE = "<think>", "</think>"


def thought_tags(tokenizer: Any) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """The tokens that open and close a thought; None where the chat template knows no thinking."""
    if not thinking_template(_template(tokenizer)).thinks:
        return None
    opened, closed = (tuple(tokenizer.encode(tag, add_special_tokens=False)) for tag in (_OPEN, _CLOSE))
    return opened, closed


def _template(tokenizer: Any) -> str:
    written = tokenizer.chat_template
    return str(written.get("default", "") if isinstance(written, dict) else written or "")
