"""The console on which commands print tables."""

from __future__ import annotations

import os

from rich.console import Console, ConsoleOptions, RenderResult
from rich.style import Style
from rich.text import Text

__all__ = ["Hanging", "console_of"]

# Wider than any row: a pipe gets each row in one line, and `grep` finds whole ids.
_PIPE_WIDTH = 10_000


def console_of(stderr: bool = False) -> Console:
    """A console as wide as the terminal or $COLUMNS; without either, nothing is wrapped."""
    console = Console(stderr=stderr, highlight=False)
    is_told = console.is_terminal or "COLUMNS" in os.environ
    return console if is_told else Console(stderr=stderr, highlight=False, width=_PIPE_WIDTH)


class Hanging:
    """A paragraph behind a marker; its further lines stand below its first word, and no line ends in blanks.

    `marker`: what the first line begins with, "· " or "1. ". On a console that wraps nothing it is one line.
    """

    def __init__(self, text: str | Text, marker: str = "· ", style: str | Style = "") -> None:
        self._text = text if isinstance(text, Text) else Text(text)
        self._marker, self._style = marker, style

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        begin = self._marker
        width = max(options.max_width - len(begin), 1)
        for line in self._text.wrap(console, width):
            line.rstrip()
            yield Text.assemble(begin, line, style=self._style)
            begin = " " * len(begin)
