"""What a long command does with Ctrl-C and SIGTERM."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator

__all__ = ["INTERRUPTED", "sigterm_as_ctrl_c"]

INTERRUPTED = 130
"""The exit status after Ctrl-C."""


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
