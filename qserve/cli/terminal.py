"""The console that commands print their tables on."""

from __future__ import annotations

import os

from rich.console import Console

__all__ = ["console_of"]

# Wider than any row: a program that reads a pipe wants a row in one line, and `grep` whole ids.
_PIPE_WIDTH = 10_000


def console_of(stderr: bool = False) -> Console:
    """As wide as the terminal, or as $COLUMNS says; where there is neither nothing is wrapped."""
    console = Console(stderr=stderr, highlight=False)
    is_told = console.is_terminal or "COLUMNS" in os.environ
    return console if is_told else Console(stderr=stderr, highlight=False, width=_PIPE_WIDTH)
