"""What earlier runs measured, by --state-dir and --no-learn."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from qserve.service.knowledge import Knowledge
from qserve.service.machine import Machine
from qserve.state_folder import state_folder

__all__ = ["knowledge_of", "measurements_option"]

measurements_option = click.option(
    "--state-dir",
    type=click.Path(path_type=Path),
    envvar="QSERVE_STATE_DIR",
    help="Run store with the measurements of earlier runs [~/.local/state/qserve].",
)
"""--state-dir of a command that plans and runs nothing."""


def knowledge_of(values: Mapping[str, Any], machine: Machine) -> Knowledge:
    """What the run store knows of the machine. A store that can't be read is told on standard error."""
    warn = lambda message: click.secho(f"· {message}", err=True, fg="yellow")  # noqa: E731 - one line
    return Knowledge.of(machine, state_folder(values.get("state_dir")), is_off=bool(values.get("no_learn")), warn=warn)
