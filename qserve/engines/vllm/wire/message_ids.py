"""Ids of Anthropic's form in vLLM's answers to /v1/messages, which have those of its chats."""

from __future__ import annotations

import re

__all__ = ["with_message_id"]

# The first id of an answer, and of its first event, is the message's own: it comes before all content.
_ID = re.compile(rb'"id":\s*"(?:chatcmpl-|msg_)?')


def with_message_id(answer: bytes) -> bytes:
    """The answer, or the first events of one, with `msg_…` for `chatcmpl-…`."""
    return _ID.sub(b'"id":"msg_', answer, count=1)
