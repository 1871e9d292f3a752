"""A progress bar for commands that send many requests, and their message after Ctrl-C."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator

from rich.console import Console

__all__ = ["request_progress", "resumable"]


@contextlib.contextmanager
def request_progress() -> Iterator[Callable[[int, int], None]]:
    """`progress(answered, wanted)`: a bar on a terminal, nothing elsewhere."""
    from rich.progress import Progress

    with Progress(transient=True, disable=not sys.stdout.isatty()) as bar:
        line = bar.add_task("asking", total=None)
        yield lambda answered, wanted: bar.update(line, completed=answered, total=wanted)


@contextlib.contextmanager
def resumable(console: Console) -> Iterator[None]:
    """On Ctrl-C in the block, say that the same command resumes."""
    try:
        yield
    except KeyboardInterrupt:
        console.print("interrupted; the answers so far are kept, and the same command goes on from there")
        raise
