"""Whether a prompt can fit, by its length alone: a token has at most as many bytes as the vocabulary's longest one.

So a text of more than `max_model_len` times that many bytes has too many tokens, whatever they are, and need not be
tokenized to find that out.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from qserve.wire.errors import ApiError

__all__ = ["check_prompt_size"]


def check_prompt_size(prompt: Any, max_prompt_bytes: int | None, max_model_len: int) -> None:
    """Raises ApiError 400 `context_length_exceeded`.

    Args:
        prompt: a text, token ids, a list of either, or messages as plain JSON or as our schema read them.
        max_prompt_bytes: UTF-8 bytes of the longest text that could fit; None: not known.
        max_model_len: tokens of prompt and answer.

    """
    for text in _texts(prompt):
        if isinstance(text, list):
            if len(text) > max_model_len:
                raise _too_long(f"{len(text)} tokens", max_model_len)
        elif max_prompt_bytes is not None and 4 * len(text) > max_prompt_bytes:
            num_bytes = len(text.encode(errors="replace"))
            if num_bytes > max_prompt_bytes:
                at_least = -(-num_bytes * max_model_len // max_prompt_bytes)
                raise _too_long(f"{num_bytes} bytes, at least {at_least} tokens", max_model_len)


def _texts(prompt: Any) -> Iterator[str | list[Any]]:
    if isinstance(prompt, str):
        yield prompt
    elif isinstance(prompt, list) and prompt:
        if isinstance(prompt[0], int):
            yield prompt
            return
        for one in prompt:
            yield from _texts(one) if isinstance(one, (str, list)) else _texts_of_message(one)


def _texts_of_message(message: Any) -> Iterator[str | list[Any]]:
    """A message's content, or the text of a part of it."""
    for name in ("content", "text"):
        value = message.get(name) if isinstance(message, dict) else getattr(message, name, None)
        if isinstance(value, (str, list)):
            yield from _texts(value)


def _too_long(what: str, max_model_len: int) -> ApiError:
    message = f"the prompt has {what}; this model takes {max_model_len} tokens, prompt and answer together"
    return ApiError(400, message, "context_length_exceeded")
