"""Server-sent events as OpenAI's and Anthropic's streams use them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

__all__ = ["DONE", "event", "named_event"]

DONE = b"data: [DONE]\n\n"


def event(payload: dict[str, Any]) -> bytes:
    """One event. Text stays UTF-8, so that a Chinese answer is not six times its size; msgspec.Raw goes in as it is."""
    return b"data: " + msgspec.json.encode(payload) + b"\n\n"


def named_event(name: str, fields: Mapping[str, Any]) -> bytes:
    """One event whose name stands in its data, too, as `type`."""
    return b"event: " + name.encode() + b"\n" + event({"type": name, **fields})
