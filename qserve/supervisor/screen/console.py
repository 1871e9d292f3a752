"""Prints the progress of a start, and rows of a name and a text, as wide as the terminal."""

from __future__ import annotations

import contextlib
import logging
import os
import textwrap
import threading
import time
from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.markup import escape
from rich.status import Status
from rich.text import Text

from qserve.hub.growth import Arrived
from qserve.terminal.progress_bar import bar_of

__all__ = ["COMMAND", "NAME_WIDTH", "Row", "Screen", "ServiceConsole", "row_lines"]

_log = logging.getLogger("qserve.supervisor")
Row = tuple[str, str]
"""Name and text; "" continues the row before."""
NAME_WIDTH = 8
COMMAND = "Try"
"""The row with a command, whose lines are never wrapped: it is there to be copied."""
_STYLES = {"Warn": "bold yellow"}
_SEPARATOR = " · "
_SPINNER_WIDTH = 2
# As `terminal/console.py` has it: a pipe without $COLUMNS gets whole lines.
_PIPE_WIDTH = 10_000


class _Timed:
    """The name of a phase, and from ten seconds on how long it has lasted; drawn anew with the spinner."""

    def __init__(self, name: str) -> None:
        self._name, self._began_s = name, time.monotonic()

    def __rich__(self) -> str:
        seconds = time.monotonic() - self._began_s
        return escape(self._name) + (f" [dim]{seconds:.0f} s[/dim]" if seconds >= 10 else "")


class ServiceConsole(Console):
    """A console whose reader may close the pipe (`qserve up … | head -1`): the service continues, with one message."""

    def on_broken_pipe(self) -> None:
        """Called by rich, whose default exits silently with status 1."""
        self.quiet = True
        with open(os.devnull, "w") as nowhere, contextlib.suppress(OSError, ValueError):  # noqa: PTH123 - a device
            os.dup2(nowhere.fileno(), self.file.fileno())  # what is still buffered must not fail at the end
        _log.warning("standard output was closed; the service continues without it")


class Screen:
    """Prints to the terminal, or plain lines to a pipe."""

    still_after_s = 15.0
    """How long a phase may last before a pipe hears of it again."""
    progress_after_s = 30.0
    """How often a pipe hears how far a download is."""

    def __init__(self, console: Console | None = None, *, is_verbose: bool = False) -> None:
        """`is_verbose`: the summary shows all that was planned and measured (--verbose)."""
        self.console = console or ServiceConsole(highlight=False, soft_wrap=True)
        self.is_verbose = is_verbose
        self.has_started = False
        """Whether the summary was printed."""
        self._status: Status | None = None
        self._phase, self._next_progress_s = "", 0.0
        self._started = time.monotonic()
        self._phase_ended = threading.Event()

    @property
    def width(self) -> int:
        """Of a line, in characters."""
        is_told = self.console.is_terminal or "COLUMNS" in os.environ
        return self.console.width if is_told else _PIPE_WIDTH

    def note(self, text: str) -> None:
        """Print a permanent line, wrapped between words: a path is never cut."""
        for line in text.splitlines():
            wrapped = textwrap.wrap(
                line, self.width, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
            )
            self.console.print("\n".join(wrapped), markup=False, soft_wrap=True)

    def phase(self, name: str, then: str = "") -> None:
        """Show the phase of the start: a spinner with seconds on a terminal, lines elsewhere.

        `then`: what follows it, where the phase itself is an end.
        """
        self._phase_ended.set()
        self._phase, self._next_progress_s = then or name, 0.0
        if not self.console.is_terminal:
            self._say(name)
            self._phase_ended = threading.Event()
            threading.Thread(target=self._say_still, args=(self._phase_ended,), daemon=True).start()
        elif self._status is None:
            self._status = self.console.status(_Timed(self._phase))
            self._status.start()
        else:
            self._status.update(_Timed(self._phase))

    @contextlib.contextmanager
    def working(self, name: str) -> Iterator[None]:
        """Show the phase until the block ends, also by an error."""
        self.phase(name)
        try:
            yield
        finally:
            self.end_progress()

    def progress(self, name: str, arrived: Arrived) -> None:
        """How far a download is: a bar on a terminal, a line at once and then now and then elsewhere."""
        self._phase_ended.set()  # it is no phase of which nothing is heard
        if self._status is not None:
            self._status.update(bar_of(name, arrived, self.width - _SPINNER_WIDTH))
        elif time.monotonic() >= self._next_progress_s:
            self._next_progress_s = time.monotonic() + self.progress_after_s
            self._say(f"{name}: {arrived}")

    def _say(self, text: str) -> None:
        self.console.print(f"  {self.seconds:5.1f} s  {text}", markup=False)

    def _say_still(self, ended: threading.Event) -> None:
        """Repeat the phase now and then: vLLM's first start compiles for minutes without output."""
        began_s = time.monotonic()
        while not ended.wait(self.still_after_s):
            seconds = time.monotonic() - began_s
            self._say(f"still {self._phase} (for {seconds:.0f} s)")

    @property
    def seconds(self) -> float:
        """Seconds since `qserve up` began."""
        return time.monotonic() - self._started

    def end_progress(self) -> None:
        """Remove the spinner."""
        self._phase_ended.set()
        if self._status is not None:
            self._status.stop()
            self._status = None

    def ready(self, rows: Sequence[Row]) -> None:
        """Print the summary: address, models, memory, example, how to stop."""
        self.end_progress()
        self.has_started = True
        self.console.print(f"\n[bold green]qserve is ready[/bold green] after {self.seconds:.1f} s")
        for name, text in rows:
            self.row(name, text)

    def row(self, name: str, text: str) -> None:
        """Print one row; its further lines are indented to the first."""
        for number, line in enumerate(row_lines(name, text, self.width)):
            head, rest = line[:NAME_WIDTH], line[NAME_WIDTH:]
            style = _STYLES.get(name, "bold") if not number else ""
            self.console.print(Text.assemble((head, style), rest), soft_wrap=True)


def row_lines(name: str, text: str, width: int) -> list[str]:
    """The lines of a row, none of them longer than `width` unless it is one word or a command."""
    room = max(width - NAME_WIDTH, 20)
    given = text.splitlines() or [""]
    lines = given if name == COMMAND else [part for line in given for part in _cut(line, room)]
    heads = [f"{name:<{NAME_WIDTH - 1}} "] + [" " * NAME_WIDTH] * (len(lines) - 1)
    return [f"{head}{line}".rstrip() for head, line in zip(heads, lines, strict=True)]


def _cut(line: str, room: int) -> Iterator[str]:
    """Cut between the parts that dots separate if possible, else between words."""
    taken = ""
    for part in line.split(_SEPARATOR) if len(line) > room else [line]:
        if taken and len(taken) + len(_SEPARATOR) + len(part) > room:
            yield taken
            taken = ""
        taken = f"{taken}{_SEPARATOR}{part}" if taken else part
        if len(taken) > room:
            *whole, taken = textwrap.wrap(taken, room, break_long_words=False, break_on_hyphens=False)
            yield from whole
    yield taken
