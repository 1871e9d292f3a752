"""The folders of the weights that a plan loads: found, downloaded, or made of a config alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Protocol

from qserve.core.checkpoint import Checkpoint
from qserve.errors import BrokenCheckpoint
from qserve.hub import resolve
from qserve.hub.growth import Arrived
from qserve.planner.plan import Plan

__all__ = ["Download", "config_only", "folder_of"]

_WEIGHTS = ("*.safetensors", "*.bin", "*.pt", "*.gguf")


class Download(Protocol):
    """Is told of a download."""

    def phase(self, text: str) -> None: ...

    def progress(self, name: str, arrived: Arrived) -> None: ...


def folder_of(checkpoint: Checkpoint, plan: Plan, told: Download) -> Path:
    """The folder of the weights that the plan loads (the model's or a quantized sibling's), downloaded if need be.

    Raises BrokenCheckpoint for one without weights.
    """
    if plan.quant.checkpoint != checkpoint.id:
        checkpoint = resolve(plan.quant.checkpoint)
    if checkpoint.folder is None:
        from qserve.hub.download import download

        name = checkpoint.id
        told.phase(f"fetching {name} from the hub")
        checkpoint = download(checkpoint, lambda arrived: told.progress(f"fetching {name}", arrived))
    assert checkpoint.folder is not None, "a download has a folder"
    if not any(any(checkpoint.folder.glob(kind)) for kind in _WEIGHTS):
        raise BrokenCheckpoint(
            f"{checkpoint.folder} has no weights ({', '.join(_WEIGHTS)}); download it again, or use random "
            "weights: --load-format dummy"
        )
    return checkpoint.folder


def config_only(checkpoint: Checkpoint, folder: Path) -> Path:
    """A folder with config.json: the checkpoint's own, or `folder` with one made from its bundled dimensions."""
    if checkpoint.folder is not None:
        return checkpoint.folder
    (folder / "config.json").write_text(json.dumps(dict(checkpoint.config)))
    return folder
