"""Messages from a terminal: several lines, a history, and lines with a backslash at their end."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import click

__all__ = ["BLOCK", "history", "read_message"]

BLOCK = '"""'
_MOST_LINES = 1000
_FIRST, _NEXT = ">>> ", "... "


def read_message() -> str:
    """The next message: one line, lines that end in a backslash, or everything between two `\"\"\"`.

    Raises EOFError for Ctrl-D and KeyboardInterrupt for Ctrl-C.
    """
    text = input(_FIRST)
    if text.lstrip().startswith(BLOCK):
        text = text.lstrip().removeprefix(BLOCK)
        while not text.rstrip().endswith(BLOCK):
            text += "\n" + input(_NEXT)
        return text.rstrip().removesuffix(BLOCK).strip("\n")
    while text.endswith("\\"):
        text = text[:-1] + "\n" + input(_NEXT)
    return text


@contextlib.contextmanager
def history(file: Path) -> Iterator[None]:
    """Line editing with the messages of earlier chats, which `file` keeps for this user alone."""
    try:
        import readline
    except ImportError:  # a Python without it reads plain lines
        yield
        return
    with contextlib.suppress(OSError):
        readline.read_history_file(file)
    readline.set_history_length(_MOST_LINES)
    try:
        yield
    finally:
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            os.close(os.open(file, os.O_CREAT | os.O_WRONLY, 0o600))
            readline.write_history_file(file)
        except OSError as error:
            click.echo(f"the history is not kept: {error.strerror}", err=True)
