"""Commands in this process, once it has imported what they need: one of their own would hardly do anything else."""

from __future__ import annotations

import contextlib
import io
import sys
import warnings
from collections.abc import Iterator
from unittest import mock

from qserve.cli.main import cli, main

__all__ = ["ended", "said"]


def said(*arguments: str) -> str:
    """All that `qserve` says of a command that ends well."""
    with _heard() as output:
        cli.main(list(arguments), prog_name="qserve", standalone_mode=False)
    return output.getvalue()


def ended(*arguments: str) -> tuple[int, str]:
    """The exit status of a command, as a shell has it, and all that it says."""
    with _heard() as output, mock.patch.object(sys, "argv", ["qserve", *arguments]):
        try:
            main()
        except SystemExit as stop:
            status = stop.code
    assert isinstance(status, int)
    return status, output.getvalue()


@contextlib.contextmanager
def _heard() -> Iterator[io.StringIO]:
    """Both outputs. What lm-eval and its packages warn of is theirs."""
    output = io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output), warnings.catch_warnings():
        warnings.simplefilter("default")
        yield output
