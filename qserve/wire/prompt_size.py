"""Whether a prompt can fit, by its length alone: a token has at most as many bytes as the vocabulary's longest one.

So a text of more than `max_model_len` times that many bytes has too many tokens, whatever they are, and need not be
tokenized to find that out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from qserve.wire.errors import ApiError, too_long
from qserve.wire.overflow import Overflow

__all__ = ["LONGER", "ContextLimits"]

LONGER = "a larger --max-model-len, if the model was made for more, or with --context, if YaRN stretches it so far"
"""What helps where the model's positions are not known."""


@dataclass(frozen=True)
class ContextLimits:
    """How much a request may hold.

    Attributes:
        max_model_len: tokens of prompt and answer.
        max_prompt_bytes: UTF-8 bytes of the longest text that could fit; None: not known.
        max_positions: the largest --max-model-len that the model was made for; None: not known.
        most_stretched: the largest --context that YaRN stretches it to; None: not known.
    """

    max_model_len: int
    max_prompt_bytes: int | None = None
    max_positions: int | None = None
    most_stretched: int | None = None

    def check(self, prompt: Any) -> None:
        """Raises ApiError 400 `context_length_exceeded` for a prompt that can't fit.

        Args:
            prompt: a text, token ids, a list of either, or messages as plain JSON or as our schema read them.

        """
        for text in _texts(prompt):
            if isinstance(text, list):
                if len(text) > self.max_model_len:
                    raise self.too_long(len(text))
            elif self.max_prompt_bytes is not None and 4 * len(text) > self.max_prompt_bytes:
                self._check_bytes(text, self.max_prompt_bytes)

    def too_long(
        self,
        num_tokens: int,
        *,
        max_tokens: int | None = None,
        known_by: str = "",
        advice: str = "shorten the prompt",
        param: str | None = None,
    ) -> ApiError:
        """The error for such a prompt, with advice that can be followed: beyond its positions YaRN alone leads."""
        if self.max_positions is None:
            advice += f" or serve with {LONGER}"
        elif self.max_model_len < self.max_positions:
            advice += f" or serve with a larger --max-model-len (at most {self.max_positions})"
        if (most := self.most_stretched) is not None and most > max(self.max_positions or most, self.max_model_len):
            advice += f" or stretch the model's positions by YaRN: --context (at most {most})"
        return too_long(Overflow(self.max_model_len, num_tokens, max_tokens, known_by), advice, param)

    def _check_bytes(self, text: str, max_bytes: int) -> None:
        num_bytes = len(text.encode(errors="replace"))
        if num_bytes > max_bytes:
            at_least = -(-num_bytes * self.max_model_len // max_bytes)
            raise self.too_long(at_least, known_by=f"it has {num_bytes} bytes")


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
