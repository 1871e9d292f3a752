"""Reasons why a text gets no reward; `qserve.wire.errors` maps them to HTTP."""

from __future__ import annotations

from qserve.errors import RequestFailed

__all__ = ["RewardFailed", "TextRefused"]


class RewardFailed(RequestFailed):
    """What scores, a model, a rule or a judge, gives no reward."""

    def __init__(self, message: str, code: str, param: str | None = None) -> None:
        super().__init__(message)
        self.code, self.param = code, param


class TextRefused(RewardFailed):
    """The text, or what was sent with it, can't be scored as it is; nothing was begun."""
