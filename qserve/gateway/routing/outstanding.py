"""Estimates the cost of a request in tokens, before it is tokenized."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["RequestTokens", "TokenEstimates"]

_BYTES_PER_TOKEN = 4.0
_FIRST_ANSWER_TOKENS = 256.0
_SMOOTHING = 0.1
# Means are kept by powers of two of max_tokens: long answers differ from short ones.
_UNBOUNDED = -1


class RequestTokens(NamedTuple):
    """Estimated tokens of one request: its prompt, and the answers of all its sequences."""

    prompt: int
    answer: int

    @property
    def total(self) -> int:
        return self.prompt + self.answer


class TokenEstimates:
    """Bytes and `max_tokens` to tokens, corrected by what workers reported of the requests before.

    Clients ask for many more tokens than answers have. So the answer is estimated as the mean of those with a
    `max_tokens` of the same magnitude, and as `max_tokens` itself (256 at most) before the first.
    """

    def __init__(self) -> None:
        self.bytes_per_token = _BYTES_PER_TOKEN
        self._answers: dict[int, float] = {}

    def of(self, num_bytes: int, num_sequences: int, max_tokens: int | None) -> RequestTokens:
        """The estimate for a body of `num_bytes` with `num_sequences` sequences."""
        first = min(_FIRST_ANSWER_TOKENS, max_tokens or _FIRST_ANSWER_TOKENS)
        answer = self._answers.get(_magnitude(max_tokens), first)
        if max_tokens is not None:
            answer = min(answer, max_tokens)
        return RequestTokens(max(1, round(num_bytes / self.bytes_per_token)), round(answer * num_sequences))

    def learn(self, num_bytes: int, num_sequences: int, max_tokens: int | None, tokens: RequestTokens) -> None:
        """Correct the estimates by the counts that the worker reported."""
        if tokens.prompt > 0:
            self.bytes_per_token += _SMOOTHING * (num_bytes / tokens.prompt - self.bytes_per_token)
        if tokens.answer > 0 and num_sequences > 0:
            each = tokens.answer / num_sequences
            key = _magnitude(max_tokens)
            before = self._answers.setdefault(key, each)
            self._answers[key] = before + _SMOOTHING * (each - before)


def _magnitude(max_tokens: int | None) -> int:
    return _UNBOUNDED if max_tokens is None else min(max_tokens, 1 << 30).bit_length()
