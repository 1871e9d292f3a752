"""The record of a run of `qserve up` at its start: command, versions, hardware."""

from __future__ import annotations

import os
import platform
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from qserve.cli.command_line import without_secrets
from qserve.core.hardware import Hardware
from qserve.library.own_server import STARTED_BY
from qserve.units import GIB

if TYPE_CHECKING:
    from qserve.supervisor.record import Recording

__all__ = ["recording_of"]


def recording_of(run_folder: Path, hardware: Hardware, keep_days: float, keep_gib: float) -> Recording:
    """The command and what is installed here. The run's folder lies in the state folder's `runs`, its name is the id.

    Raises UsageError for bounds that make no sense.
    """
    from qserve.detect.packages import Packages
    from qserve.runs.retention import Retention
    from qserve.runs.writer import NewRun
    from qserve.supervisor.record import Recording
    from qserve.version import __version__

    versions = {"qserve": __version__, "python": platform.python_version(), **Packages.installed().versions}
    command = without_secrets(["qserve", *sys.argv[1:]])
    about = {**asdict(hardware), "cpu": hardware.cpu.model_name}  # not its hundred flags
    run = NewRun(run_folder.name, command, versions, about, run_folder, os.environ.get(STARTED_BY, ""))
    return Recording(run_folder.parent.parent, run, Retention(keep_days, int(keep_gib * GIB)))
