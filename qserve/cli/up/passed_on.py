"""The options of `qserve up` for commands that pass them on to it."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence

import click

from qserve.cli.up.command import command as up

__all__ = ["passed_options"]


def passed_options(shown: Sequence[str], left_out: Sequence[str] = ()) -> Iterator[click.Parameter]:
    """Every option of `up` except `left_out`, those of `shown` in --help, without their environment variables."""
    for option in up.params:
        if option.name in left_out:
            continue
        same = copy.copy(option)
        same.envvar = None
        if isinstance(same, click.Option):
            same.hidden = same.name not in shown
        yield same
