"""How echo's worker is started: a process of qserve's own kind, told by a file."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from qserve.worker.launch import Launch
from qserve.worker.module_launch import ModuleLaunch
from qserve.worker.process import WorkerSpec

__all__ = ["EchoLaunch"]


class EchoLaunch(ModuleLaunch):
    """See `qserve.worker.launch.EngineLaunch`."""

    takes_engine_args: ClassVar[bool] = False
    verifies_quant: ClassVar[bool] = False

    @classmethod
    def serving(cls, spec: WorkerSpec, file: Path, engine_args: str) -> Launch:
        return cls("echo_engine.worker", spec, file)
