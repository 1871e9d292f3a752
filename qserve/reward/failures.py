"""Reasons why a text gets no reward; `qserve.wire.errors` maps them to HTTP."""

from __future__ import annotations

from qserve.errors import RequestFailed
from qserve.wire.overflow import Overflow

__all__ = ["RewardFailed", "TextRefused", "too_long"]


class RewardFailed(RequestFailed):
    """What scores, a model, a rule or a judge, gives no reward."""

    def __init__(self, message: str, code: str, param: str | None = None) -> None:
        super().__init__(message)
        self.code, self.param = code, param


class TextRefused(RewardFailed):
    """The text, or what was sent with it, can't be scored as it is; nothing was begun."""


def too_long(num_tokens: int, max_length: int, known_by: str = "") -> TextRefused:
    """The refusal of a text that may not be cut; `known_by` where `num_tokens` is a lower bound."""
    said = Overflow(max_length, num_tokens, known_by=known_by, what="text").for_openai()
    advice = "shorten it, or let it be cut: --truncate left | right, or a larger --max-length"
    return TextRefused(f"{said} (max_length): {advice}", "context_length_exceeded", "input")
