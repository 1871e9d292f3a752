"""Which flags somebody gave. One that nothing reads is refused by its name, never dropped in silence."""

from __future__ import annotations

from collections.abc import Iterable

import click
from click.core import ParameterSource

from qserve.errors import UsageError

__all__ = ["given", "refuse_given"]

_ASKED = (ParameterSource.COMMANDLINE, ParameterSource.ENVIRONMENT, ParameterSource.DEFAULT_MAP)


def given(names: Iterable[str]) -> list[str]:
    """The flags among the running command's options `names` that come from a command line, a variable or --config."""
    context = click.get_current_context()
    options = {param.name: param.opts[0] for param in context.command.params}
    return [options[name] for name in names if name in options and context.get_parameter_source(name) in _ASKED]


def refuse_given(names: Iterable[str], why: str) -> None:
    """Raises UsageError that names the flags among `names` that were given; `why` says what would read them."""
    if flags := given(names):
        raise UsageError(f"{', '.join(flags)}: {why}")
