"""The console on which commands print tables."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderResult
from rich.style import Style
from rich.text import Text

__all__ = ["Hanging", "Items", "console_of"]

# Wider than any row: a pipe gets each row in one line, and `grep` finds whole ids.
_PIPE_WIDTH = 10_000
_TOGETHER = "\N{NO-BREAK SPACE}"


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


class Items:
    """Short texts with " · " between them behind a marker; a line ends between two items, if there is room for one."""

    def __init__(self, items: Iterable[str], marker: str = "", style: str | Style = "") -> None:
        self._text = " · ".join(item.replace(" ", _TOGETHER) for item in items).replace(" · ", f"{_TOGETHER}· ")
        self._marker, self._style = marker, style

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        begin = self._marker
        width = max(options.max_width - len(begin), 1)
        for line in textwrap.wrap(self._text, width, break_long_words=False, break_on_hyphens=False):
            yield Text(f"{begin}{line.replace(_TOGETHER, ' ')}", style=self._style)
            begin = " " * len(begin)
