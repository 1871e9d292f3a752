"""What `qserve up` would refuse, found without a start: for commands that start it themselves, some of them often."""

from __future__ import annotations

import io
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import click
from rich.console import Console

from qserve.cli.options.knowledge import knowledge_of
from qserve.cli.up.checks import check_flags, check_packages
from qserve.cli.up.command import command
from qserve.cli.up.plans import planned_hosts
from qserve.errors import QserveError
from qserve.service.machine import Machine
from qserve.service.request import ServiceRequest
from qserve.supervisor.screen import Screen

__all__ = ["check_start"]


def check_start(arguments: Sequence[str], state_dir: Path | None, where: str = "") -> None:
    """Plans the service of these arguments of `qserve up`; nothing is downloaded or started.

    Raises what `qserve up` would, with `where` before its sentence: UsageError, DoesNotFit, or click's own UsageError.
    """
    check_packages()
    try:
        words = [*arguments, *([] if state_dir is None else ["--state-dir", str(state_dir)])]
        with command.make_context("up", words) as context, tempfile.TemporaryDirectory() as configs:
            values = context.params
            check_flags(values)
            request = replace(ServiceRequest.from_flags(values), load_format="dummy")  # the weights need not be there
            machine, screen = Machine.named(values["gpu"], serves=True), Screen(Console(file=io.StringIO()))
            planned_hosts(request, machine, knowledge_of(values, machine), Path(configs), screen)
    except QserveError as error:
        error.args = (f"{where}{error}",)
        raise
    except click.UsageError as error:  # of another kind its sentence is more than its message
        raise click.UsageError(f"{where}{error.format_message()}", error.ctx) from error
