"""Which flags were given explicitly: one that has no effect is refused by name, never silently ignored."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import click
from click.core import ParameterSource

from qserve.errors import UsageError

__all__ = ["given", "given_words", "refuse_flags"]

_ASKED = (ParameterSource.COMMANDLINE, ParameterSource.ENVIRONMENT, ParameterSource.DEFAULT_MAP)


def given(names: Iterable[str]) -> list[str]:
    """Those of the options `names` that were set on the command line, by a variable or by --config, as flags."""
    return list(_given(names))


def given_words(names: Iterable[str]) -> list[str]:
    """The same, each with its value behind it, as words of a command line. Not for switches and repeated options."""
    return [word for flag, value in _given(names).items() for word in (flag, str(value))]


def _given(names: Iterable[str]) -> dict[str, Any]:
    context = click.get_current_context()
    options = {param.name: param.opts[0] for param in context.command.params}
    asked = (name for name in names if name in options and context.get_parameter_source(name) in _ASKED)
    return {options[name]: context.params.get(name) for name in asked}


def refuse_flags(names: Iterable[str], why: str) -> None:
    """Raises UsageError if any of the options `names` was given; `why` says when they have an effect."""
    if flags := given(names):
        raise UsageError(f"{', '.join(flags)}: {why}")
