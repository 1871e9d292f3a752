"""Reads a verdict from a judge's answer: a model wrote the text and an operator the pattern, so both are bounded."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from qserve.errors import MissingExtra, UsageError

if TYPE_CHECKING:
    import regex

__all__ = ["LIMIT_S", "MAX_CHARS", "last_match", "tail_of", "verdict_pattern"]

MAX_CHARS = 2000
"""Of an answer's end: a verdict that stands further ahead is none."""
LIMIT_S = 0.25
"""Of the processor, for one answer. Ordinary patterns take microseconds."""


@lru_cache(maxsize=64)
def verdict_pattern(text: str) -> regex.Pattern[str]:
    """`regex` and not `re`: it lets go of the interpreter while it searches, and stops at a deadline.

    Raises UsageError for what is no regular expression, MissingExtra where the package is missing.
    """
    try:
        import regex  # an extra
    except ImportError:
        raise MissingExtra("regex", "a judge") from None
    try:
        return regex.compile(text)
    except regex.error as error:
        raise UsageError(f"is not a regular expression: {error}") from None


def tail_of(answer: str) -> str:
    """What is read of an answer: the end of what stands after a thought, and the character before it."""
    return answer.rpartition("</think>")[2][-MAX_CHARS - 1 :]


def last_match(pattern: str, tail: str) -> str | None:
    """The first group of the last match, or all of it; None where there is no match, or none within `LIMIT_S`.

    Blocks; other threads run meanwhile.
    """
    compiled, found = verdict_pattern(pattern), None
    start = max(0, len(tail) - MAX_CHARS)  # `^` is no line's begin where the text was only cut
    try:
        for match in compiled.finditer(tail, start, timeout=LIMIT_S, concurrent=True):
            found = match[1] if compiled.groups else match[0]
    except TimeoutError:
        return None
    return None if found is None else found.strip()
