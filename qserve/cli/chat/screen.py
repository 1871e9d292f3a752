"""An answer on the screen: thoughts dimmed, no control characters, and its figures below it."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from typing import Any

import click
from rich.console import Console

from qserve.cli.chat.stream import Delta

__all__ = ["AnswerOnScreen", "note"]

# A model's text must not move the cursor, change colours or set the window's title.
_CONTROLS = {code: "�" for code in (*range(0x20), 0x7F, *range(0x80, 0xA0)) if chr(code) not in "\n\t"}


def note(text: str) -> None:
    """A line of ours, on standard error: the answer alone is on standard output."""
    click.secho(text, err=True, dim=True)


class AnswerOnScreen:
    """Prints the pieces of one answer as they come; `text` is the answer without its thought."""

    def __init__(self) -> None:
        self.text = ""
        self._thinks = False
        self._ends_with_newline = True
        self._is_terminal = sys.stdout.isatty()
        self._began_s = time.monotonic()
        self._first_s: float | None = None
        self._usage: Mapping[str, Any] = {}
        console = Console(stderr=True)
        self._waiting = console.status("waiting for the first token") if console.is_terminal else None

    def __enter__(self) -> AnswerOnScreen:
        if self._waiting is not None:
            self._waiting.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop_waiting()
        if not self._ends_with_newline:
            click.echo()

    def show(self, delta: Delta) -> None:
        """Print a piece. A thought is shown on a terminal alone: a pipe gets the answer."""
        self._usage = delta.usage or self._usage
        if not (delta.text or delta.thought):
            return
        self._stop_waiting()
        self._first_s = self._first_s or time.monotonic()
        if delta.thought and self._is_terminal:
            self._thinks = True
            self._print(delta.thought, dim=True)
        if delta.text:
            text = delta.text
            if self._thinks:  # the answer begins below its thought
                self._thinks, text = False, text.lstrip("\n")
                self._print("\n\n" if not self._ends_with_newline else "\n")
            self.text += text
            self._print(text)

    def figures(self) -> str:
        """Tokens, tokens/s and the time to the first token, for --verbose."""
        now_s, first_s = time.monotonic(), self._first_s or time.monotonic()
        num_tokens = int(self._usage.get("completion_tokens") or 0)
        rate = (num_tokens - 1) / (now_s - first_s) if num_tokens > 1 and now_s > first_s else 0.0
        prompt = self._usage.get("prompt_tokens")
        parts = [f"{prompt} tokens in the prompt"] if prompt else []
        parts += [
            f"{num_tokens} in the answer",
            f"{rate:.1f} tokens/s",
            f"first token after {first_s - self._began_s:.2f} s",
        ]
        return " · ".join(parts)

    def _print(self, text: str, *, dim: bool = False) -> None:
        shown = text.translate(_CONTROLS) if self._is_terminal else text
        click.secho(shown, nl=False, dim=True) if dim else click.echo(shown, nl=False)
        self._ends_with_newline = text.endswith("\n")

    def _stop_waiting(self) -> None:
        if self._waiting is not None:
            self._waiting.stop()
            self._waiting = None
