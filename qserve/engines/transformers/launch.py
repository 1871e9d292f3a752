"""How the transformers engine's chat worker is started."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from qserve.worker.launch import Launch
from qserve.worker.module_launch import ModuleLaunch
from qserve.worker.process import WorkerSpec

__all__ = ["TransformersLaunch"]


class TransformersLaunch(ModuleLaunch):
    """The transformers engine's chat worker."""

    takes_engine_args: ClassVar[bool] = False
    verifies_quant: ClassVar[bool] = True

    @classmethod
    def serving(cls, spec: WorkerSpec, file: Path, engine_args: str) -> Launch:
        """See `EngineLaunch`."""
        return cls("qserve.engines.transformers.worker", spec, file)
