"""The line of a compiler's error that tells what is wrong: Triton's errors have many, with the source and advice."""

from __future__ import annotations

import re
from collections.abc import Iterator

__all__ = ["reason_of"]

_MOST_CHARACTERS = 200
# Triton's CompilationError: a place, the source up to it, a caret below, and the message, if there is one, last.
_PLACE = re.compile(r"at \d+:\d+:")
_CARET = re.compile(r"\s*\^\s*")
_REPR = re.compile(r"(\w+)\((['\"])(.*)\2\)")
_NAMED = re.compile(r"\w*(Error|Exception|Failure)\b")
_ERROR = re.compile(r"\berror\s*:", re.IGNORECASE)
# What ptxas says after each error, and Triton after ptxas.
_SAYS_NOTHING = re.compile(r"Repro command:|ptxas fatal\s*: Ptx assembly aborted|`ptxas` (stderr|failed)")
_PREFIX = "PTXAS error: "


def reason_of(error: BaseException) -> str:
    """One line, at most 200 characters: name and message of the deepest cause that says something.

    Triton wraps the error of a function that a kernel calls, so what is wrong stands in the cause.
    """
    for one in reversed(list(_causes(error))):
        line = _telling_line(str(one))
        if line:
            named = line if _NAMED.match(line) else f"{type(one).__name__}: {line}"
            return named if len(named) <= _MOST_CHARACTERS else f"{named[: _MOST_CHARACTERS - 1]}…"
    return type(error).__name__


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """The exception itself first."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__


def _telling_line(text: str) -> str:
    lines = [
        line.strip() for line in text.removeprefix(_PREFIX).splitlines() if line.strip() and not _CARET.fullmatch(line)
    ]
    if not lines:
        return ""
    if _PLACE.match(lines[0]):
        found = _REPR.fullmatch(lines[-1])
        return f"{found[1]}: {found[3]}" if found else lines[-1]
    telling = [line for line in lines if not _SAYS_NOTHING.match(line)] or lines
    return next((line for line in reversed(telling) if _ERROR.search(line)), telling[0])
