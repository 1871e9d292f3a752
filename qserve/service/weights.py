"""The folders of the weights that a plan loads: found, downloaded, or made of a config alone."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from qserve.core.checkpoint import Checkpoint
from qserve.errors import BrokenCheckpoint
from qserve.hub import resolve
from qserve.hub.growth import Arrived
from qserve.hub.revisions import split_revision
from qserve.planner.plan import Plan
from qserve.service.request import RewardRequest

if TYPE_CHECKING:
    from qserve.reward.checkpoints import RewardCheckpoint

__all__ = ["Download", "config_only", "folder_of", "whole_reward"]

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


def whole_reward(asked: RewardRequest, trained: RewardCheckpoint, told: Download) -> RewardCheckpoint:
    """The reward model with all of its files, and those of its base; what was planned by its headers is downloaded."""
    if not trained.to_fetch:
        return trained
    from qserve.hub.download import fetch
    from qserve.reward.find import find_reward

    for name in trained.to_fetch:
        told.phase(f"fetching {name} from the hub")
        fetch(*split_revision(name), partial(told.progress, f"fetching {name}"))
    return find_reward(asked.checkpoint, asked.settings)


def config_only(checkpoint: Checkpoint, folder: Path) -> Path:
    """A folder with config.json: the checkpoint's own, or `folder` with one made from its bundled dimensions."""
    if checkpoint.folder is not None:
        return checkpoint.folder
    (folder / "config.json").write_text(json.dumps(dict(checkpoint.config)))
    return folder
