"""What a long command does with Ctrl-C and SIGTERM, and the command line that continues it."""

from __future__ import annotations

import contextlib
import shlex
import signal
import sys
from collections.abc import Iterable, Iterator

__all__ = ["INTERRUPTED", "shell_text", "sigterm_as_ctrl_c", "this_command"]

INTERRUPTED = 130
"""The exit status after Ctrl-C."""
_SECRET = "--api-key"  # noqa: S105
# Flags that would stop the next run where this one stopped.
_LEFT_OUT = ("--strict",)


def this_command(*more: str) -> str:
    """The command line of this process, with `more` flags; a key in it is told as the variable."""
    given = [word for word in sys.argv[1:] if word not in _LEFT_OUT]
    words = ["qserve", *given, *(flag for flag in more if flag not in given)]
    return shell_text(words)


def shell_text(words: Iterable[str]) -> str:
    """A command line to copy; a key in it is told as the variable."""
    told, before = [], ""
    for word in words:
        if before == _SECRET:
            told.append('"$QSERVE_API_KEY"')
        elif word.startswith(f"{_SECRET}="):
            told.append(f'{_SECRET}="$QSERVE_API_KEY"')
        else:
            told.append(shlex.quote(word))
        before = word
    return " ".join(told)


@contextlib.contextmanager
def sigterm_as_ctrl_c() -> Iterator[None]:
    """SIGTERM does in the block what Ctrl-C does, in an event loop too. Outside of the main thread nothing changes."""
    try:
        before = signal.signal(signal.SIGTERM, _interrupt)
    except ValueError:
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _interrupt(*_: object) -> None:
    if signal.getsignal(signal.SIGINT) not in (signal.SIG_IGN, None):
        signal.raise_signal(signal.SIGINT)
        return
    # Ctrl-C is ignored, as in the background job of a script, and then asyncio does not handle it either.
    import asyncio

    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        raise KeyboardInterrupt from None
    loop.call_soon_threadsafe(_raise)  # between the steps of tasks: a task that it ended would print a traceback


def _raise() -> None:
    raise KeyboardInterrupt
