"""What a long command is doing, on standard error, and its message after Ctrl-C."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click
from rich.console import Console
from rich.text import Text

from qserve.cli.command_line import this_command
from qserve.cli.interrupted import sigterm_as_ctrl_c
from qserve.hub.growth import Arrived
from qserve.terminal.console import console_of
from qserve.terminal.progress_bar import bar_of

if TYPE_CHECKING:
    from rich.progress import Progress, RenderableColumn

__all__ = ["ProgressLine", "count_text", "progress_line", "resumable"]

_SAY_EVERY_S = 30.0
_BESIDE_WIDTH = 10
"""What the spinner and the clock take of a line."""


class ProgressLine:
    """On a terminal one line that is rewritten; elsewhere a line for each phase, and its count every 30 seconds."""

    def __init__(self, console: Console, bar: Progress, drawn: RenderableColumn) -> None:
        self._console, self._bar, self._drawn = console, bar, drawn
        self._phase, self._began_s, self._said_s, self._first = "", 0.0, 0.0, 0

    def phase(self, text: str, *, is_short: bool = False) -> None:
        """What is done from now on: "loading demo". One that is short as a rule is told on a terminal alone."""
        self._phase, self._began_s = text, time.monotonic()
        self._said_s, self._first = self._began_s, 0
        if self._console.is_terminal:
            self._drawn.renderable = _line(text)
        elif not is_short:
            self._console.print(f"{text} …", markup=False, soft_wrap=True)

    def begin_at(self, done: int) -> None:
        """So many of the phase are there from before: they count, and not for the rate."""
        self._first = done

    def end(self) -> None:
        """Nothing more is done: the line is gone before what the command prints."""
        self._bar.stop()

    def say(self, text: str) -> None:
        """A line that stays."""
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def count(self, done: int, total: int, note: str = "") -> None:
        """So many of the phase are done; `note` is what else is known by now."""
        now_s = time.monotonic()
        text = count_text(done, total, now_s - self._began_s, self._first)
        self.tell(f"{text} · {note}" if note else text)

    def tell(self, text: str) -> None:
        """How far the phase is, in words."""
        self._show(text := f"{self._phase}: {text}", _line(text))

    def arrived(self, arrived: Arrived) -> None:
        """How far the download is that the phase names: a bar on a terminal."""
        width = self._console.width - _BESIDE_WIDTH
        self._show(f"{self._phase}: {arrived}", bar_of(self._phase, arrived, width))

    def _show(self, text: str, drawn: Text) -> None:
        now_s = time.monotonic()
        if self._console.is_terminal:
            self._drawn.renderable = drawn
        elif now_s - self._said_s >= _SAY_EVERY_S:
            self._said_s = now_s
            self._console.print(text, markup=False, soft_wrap=True)


@contextlib.contextmanager
def progress_line() -> Iterator[ProgressLine]:
    """The line of one command; it is gone when the block ends."""
    from rich.progress import Progress, RenderableColumn, SpinnerColumn, TimeElapsedColumn

    console = console_of(stderr=True)
    console.file = sys.stderr  # this one: a library that is run may have its own redirected
    drawn = RenderableColumn()
    columns = (SpinnerColumn(), drawn, TimeElapsedColumn())
    with Progress(
        *columns,
        console=console,
        transient=True,
        disable=not console.is_terminal,
        redirect_stdout=sys.stdout.isatty(),  # what goes to a file or a pipe must not go to the terminal instead
    ) as bar:
        bar.add_task("", total=None)
        yield ProgressLine(console, bar, drawn)


def _line(text: str) -> Text:
    return Text(text, no_wrap=True, overflow="ellipsis")


def count_text(done: int, total: int, elapsed_s: float, first: int = 0) -> str:
    """'1,204 of 8,000 · 310/s · 22 s left'; without a rate until there is one."""
    text = f"{done:,} of {total:,}"
    rate = (done - first) / elapsed_s if elapsed_s > 0 else 0.0
    if rate <= 0 or done >= total:
        return text
    speed = f"{rate:,.0f}" if rate >= 10 else f"{rate:.1f}"
    return f"{text} · {speed}/s · {_left((total - done) / rate)} left"


def _left(seconds: float) -> str:
    whole = round(seconds)
    if whole >= 3600:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
    return f"{whole // 60} min {whole % 60:02d} s" if whole >= 60 else f"{whole} s"


@contextlib.contextmanager
def resumable(kept: str = "The answers so far are kept") -> Iterator[None]:
    """On Ctrl-C or SIGTERM in the block, print what is `kept`, and the command that continues."""
    try:
        with sigterm_as_ctrl_c():
            yield
    except KeyboardInterrupt:
        click.echo(f"Interrupted. {kept}; to continue: {this_command()}", err=True)
        raise
