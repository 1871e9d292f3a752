"""The command line of this process, to be kept or to be copied: no key is in it."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterable, Sequence

__all__ = ["shell_text", "this_command", "without_secrets"]

# --step-token is a token of a text.
_SECRET_FLAG = r"--(?!step-token\b)[\w-]*(?:key|token|secret|password)"  # noqa: S105 - the names of flags
_SECRET = re.compile(rf"({_SECRET_FLAG}(?:=|\s+))(\S+)", re.IGNORECASE)
_HIDDEN = "***"
# What a shell puts in the place of a value that is hidden.
_VARIABLES = {"--api-key": '"$QSERVE_API_KEY"'}
# Flags that would stop the next run where this one stopped.
_LEFT_OUT = ("--strict",)


def without_secrets(arguments: Sequence[str]) -> tuple[str, ...]:
    """The arguments with the values of --api-key, --hf-token and their like as `***`, also within one argument."""
    written: list[str] = []
    for argument in arguments:
        follows_secret = bool(written) and re.fullmatch(_SECRET_FLAG, written[-1], re.IGNORECASE)
        written.append(_HIDDEN if follows_secret else _SECRET.sub(rf"\1{_HIDDEN}", argument))
    return tuple(written)


def this_command(*more: str) -> str:
    """The command line of this process, with `more` flags."""
    given = [word for word in sys.argv[1:] if word not in _LEFT_OUT]
    return shell_text(["qserve", *given, *(flag for flag in more if flag not in given)])


def shell_text(words: Iterable[str]) -> str:
    """A command line to copy; a secret in it is its variable where it has one, else `***`."""
    told, before = [], ""
    for word in without_secrets(list(words)):
        flag, equals, value = word.partition("=")
        if word == _HIDDEN and before in _VARIABLES:
            told.append(_VARIABLES[before])
        elif equals and value == _HIDDEN and flag in _VARIABLES:
            told.append(f"{flag}={_VARIABLES[flag]}")
        else:
            told.append(shlex.quote(word))
        before = word
    return " ".join(told)
