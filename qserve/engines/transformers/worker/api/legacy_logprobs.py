"""The `logprobs` of /v1/completions: four parallel lists, one entry a token.

Clients lean on its details. lm-eval calls a token greedy when its entry of `token_logprobs` equals the maximum of its
entry of `top_logprobs`, so both hold the same float, the token itself is always among the top ones, and no two tokens
share a key. Nothing precedes the first token of an echoed prompt: both entries are null there.
"""

from __future__ import annotations

import codecs
from typing import Any

import msgspec

from qserve.engines.transformers.worker.prompts.token_text import TokenText

__all__ = ["LegacyLogprobs"]


class LegacyLogprobs:
    """The lists of one choice while they grow; offsets go on counting when a stream takes the lists away."""

    def __init__(self, naming: TokenText) -> None:
        self._naming = naming
        self._tokens: list[str] = []
        self._token_logprobs: list[float | None] = []
        self._top_logprobs: list[msgspec.Raw | None] = []  # as JSON: at the end it would take seconds in one piece
        self._text_offset: list[int] = []
        self._num_chars = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")("ignore")

    def add(self, token_id: int, logprob: float | None, top: tuple[tuple[int, float], ...]) -> None:
        """One more token; `logprob` None says that nothing precedes it."""
        label = self._naming.label(token_id)
        # Characters before this token; one whose bytes are not all there counts as not yet begun.
        self._text_offset.append(self._num_chars)
        self._num_chars += len(self._decoder.decode(self._naming.raw(token_id)))
        self._tokens.append(label)
        self._token_logprobs.append(logprob)
        if logprob is None:
            self._top_logprobs.append(None)
        else:
            likeliest = {self._naming.label(other): value for other, value in top}
            self._top_logprobs.append(msgspec.Raw(msgspec.json.encode({**likeliest, label: logprob})))

    def take(self) -> dict[str, Any]:
        """OpenAI's four lists of the tokens that came since they were taken last, for msgspec to encode."""
        lists = {
            "tokens": self._tokens,
            "token_logprobs": self._token_logprobs,
            "top_logprobs": self._top_logprobs,
            "text_offset": self._text_offset,
        }
        self._tokens, self._token_logprobs, self._top_logprobs, self._text_offset = [], [], [], []
        return lists
