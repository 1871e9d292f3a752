"""Server-sent events as OpenAI's streams use them."""

from __future__ import annotations

import json
from typing import Any

__all__ = ["DONE", "event"]

DONE = b"data: [DONE]\n\n"


def event(payload: dict[str, Any]) -> bytes:
    """One event. Text stays UTF-8, so that a Chinese answer is not six times its size."""
    return b"data: " + json.dumps(payload, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"
