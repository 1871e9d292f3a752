"""How systemd, compose, Kubernetes and a shell read what stands in a file: written from their manuals, for tests."""

from __future__ import annotations

import re
import shlex
from typing import Any

__all__ = ["by_compose", "by_kuberay_s_shell", "by_kubernetes", "unit_lines", "unit_words"]

_ESCAPES = {"\\": "\\", '"': '"', "'": "'", "n": "\n", "t": "\t", "s": " "}


def unit_lines(text: str) -> list[tuple[str, str]]:
    """Keys and values of a unit: comments and sections aside, a backslash at an end goes on in the next line."""
    found, waiting = [], ""
    for line in re.split(r"\r\n|\n|\r|\0", text):
        line = waiting + line.lstrip(" \t\n\r") if waiting else line.strip(" \t\n\r")
        if not waiting and (not line or line[0] in "#;["):
            continue
        if line.endswith("\\"):
            waiting = line[:-1] + " "
            continue
        waiting = ""
        key, _, value = line.partition("=")
        found.append((key.strip(), value.strip(" \t\n\r")))
    return found


def unit_words(command: str) -> list[str]:
    """Words of an Exec line: quotes, escapes, %% and $$ undone. A specifier stays; a variable is an error."""
    words: list[str] = []
    word, quote, at = None, "", 0
    while at < len(command):
        char = command[at]
        at += 1
        if char == "\\":
            word, at = (word or "") + _ESCAPES[command[at]], at + 1
        elif quote:
            word, quote = (word, "") if char == quote else ((word or "") + char, quote)
        elif char in "\"'":
            word, quote = word or "", char
        elif char in " \t\n\r":
            words += [] if word is None else [word]
            word = None
        else:
            word = (word or "") + char
    assert not quote
    words += [] if word is None else [word]
    program, *others = (re.sub("%(.)", lambda m: "%" if m[1] == "%" else m[0], one) for one in words)
    return [program, *map(_without_dollars, others)]


def _without_dollars(text: str) -> str:
    assert "$" not in text.replace("$$", ""), f"a variable in {text!r}"
    return text.replace("$$", "$")


def by_compose(value: Any) -> Any:
    """A document after interpolation."""
    if isinstance(value, str):
        return _without_dollars(value)
    if isinstance(value, dict):
        return {key: by_compose(one) for key, one in value.items()}
    return [by_compose(one) for one in value] if isinstance(value, list) else value


def by_kubernetes(text: str) -> str:
    """An argument of a container after expansion (third_party/forked/golang/expansion)."""
    out, at = "", 0
    while at < len(text):
        if text[at] != "$" or at + 1 == len(text):
            out, at = out + text[at], at + 1
        elif text[at + 1] == "$":
            out, at = out + "$", at + 2
        else:
            assert text[at + 1] != "(" or ")" not in text[at:], f"a variable in {text!r}"
            out, at = out + text[at : at + 2], at + 2
    return out


def by_kuberay_s_shell(script: str) -> list[str]:
    """Words of `exec qserve …` at the script's end."""
    return shlex.split(by_kubernetes(script).partition("exec qserve ")[2])
