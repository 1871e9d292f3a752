"""What the body of a refused request says: the message of an error in OpenAI's shape, or the text of a proxy's page."""

from __future__ import annotations

import json
from typing import Any

__all__ = ["error_message", "message_of"]

_LONGEST_QUOTE = 300
# Of OpenAI's errors, of FastAPI's, and of servers that write a text under `error`.
_NAMES = ("message", "detail", "error")


def message_of(body: bytes, hint: str = "") -> str:
    """The error's message; of a body in any other shape its beginning on one line, and `hint` behind it."""
    try:
        answer = json.loads(body)
    except (ValueError, RecursionError):
        answer = None
    return error_message(answer) or " ".join(body.decode(errors="replace").split())[:_LONGEST_QUOTE] + hint


def error_message(answer: Any) -> str:
    """The error's message in the document of an answer, or of an event; "" for a document in any other shape."""
    if not isinstance(answer, dict):
        return ""
    return _message(answer.get("error")) or _message(answer)


def _message(document: Any) -> str:
    if isinstance(document, str):
        return document
    if not isinstance(document, dict):
        return ""
    return next((document[name] for name in _NAMES if isinstance(document.get(name), str) and document[name]), "")
