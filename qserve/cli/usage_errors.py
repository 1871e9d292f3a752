"""Errors of the command line as one sentence: what was seen, what is allowed, and the nearest valid word."""

from __future__ import annotations

import difflib
import os
import re

import click

__all__ = ["sentence_of", "sentence_of_os_error", "shortened"]

_CHOICE = re.compile(r"'(?P<seen>.*?)' is not one of (?P<allowed>.*)", re.DOTALL)
# click's names of types mean nothing to users.
_TYPES = (
    (re.compile(r"is not a valid integer(?: range)?\."), "is not a whole number"),
    (re.compile(r"is not a valid float(?: range)?\."), "is not a number"),
)


def sentence_of(error: click.ClickException) -> str:
    """One line for an error of click: its message, the nearest match, and where the help is."""
    message = " ".join(error.format_message().split()).removesuffix(".")
    for pattern, words in _TYPES:
        message = pattern.sub(words, f"{message}.").removesuffix(".")
    context = getattr(error, "ctx", None)
    help_call = f" (see {context.command_path} --help)" if context is not None else ""
    return f"{shortened(message)}{_near(error)}{help_call}"


def _near(error: click.ClickException) -> str:
    """`; did you mean …?` for a choice or a command; click itself does it for options."""
    found = _CHOICE.search(error.message)
    if found is not None:
        seen, known = found["seen"], re.findall(r"'([^']*)'", found["allowed"])
    elif isinstance(error, click.exceptions.NoSuchCommand) and isinstance(error.ctx and error.ctx.command, click.Group):
        if "Did you mean" in error.format_message():
            return ""
        seen, known = error.command_name, error.ctx.command.list_commands(error.ctx)  # type: ignore[union-attr]
    else:
        return ""
    near = difflib.get_close_matches(seen.lower(), known, n=1, cutoff=0.5)
    return f"; did you mean {near[0]}?" if near else ""


def shortened(text: str, most: int = 400) -> str:
    """`text` cut to `most` characters: a value in it may be a megabyte long."""
    return text if len(text) <= most else f"{text[: most // 2]} … {text[-most // 2 :]}"


def sentence_of_os_error(error: OSError) -> str:
    """An OSError with its file in one sentence: a full disk, no permission, a name that is too long."""
    where = f"{shortened(str(error.filename), 200)}: " if error.filename else ""
    return f"{where}{error.strerror or os.strerror(error.errno or 0)}"
