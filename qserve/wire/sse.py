"""Server-sent events as OpenAI's streams use them."""

from __future__ import annotations

from typing import Any

import msgspec

__all__ = ["DONE", "event"]

DONE = b"data: [DONE]\n\n"


def event(payload: dict[str, Any]) -> bytes:
    """One event. Text stays UTF-8, so that a Chinese answer is not six times its size; msgspec.Raw goes in as it is."""
    return b"data: " + msgspec.json.encode(payload) + b"\n\n"
