"""Commands in this process, once it has imported lm-eval: a process of their own would hardly do anything else."""

from __future__ import annotations

import contextlib
import io
import warnings

from qserve.cli.main import cli

__all__ = ["said"]


def said(*arguments: str) -> str:
    """All that `qserve` says of a command that ends well. What lm-eval and its packages warn of is theirs."""
    output = io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output), warnings.catch_warnings():
        warnings.simplefilter("default")
        cli.main(list(arguments), prog_name="qserve", standalone_mode=False)
    return output.getvalue()
