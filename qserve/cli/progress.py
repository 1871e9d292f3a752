"""A bar of requests for commands that ask many."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator

__all__ = ["request_progress"]


@contextlib.contextmanager
def request_progress() -> Iterator[Callable[[int, int], None]]:
    """`progress(answered, wanted)`: a bar on a terminal, nothing elsewhere."""
    from rich.progress import Progress

    with Progress(transient=True, disable=not sys.stdout.isatty()) as bar:
        line = bar.add_task("asking", total=None)
        yield lambda answered, wanted: bar.update(line, completed=answered, total=wanted)
