"""The console on which commands print tables."""

from __future__ import annotations

import os

from rich.console import Console

__all__ = ["console_of"]

# Wider than any row: a pipe gets each row in one line, and `grep` finds whole ids.
_PIPE_WIDTH = 10_000


def console_of(stderr: bool = False) -> Console:
    """A console as wide as the terminal or $COLUMNS; without either, nothing is wrapped."""
    console = Console(stderr=stderr, highlight=False)
    is_told = console.is_terminal or "COLUMNS" in os.environ
    return console if is_told else Console(stderr=stderr, highlight=False, width=_PIPE_WIDTH)
