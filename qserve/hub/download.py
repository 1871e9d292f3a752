"""A checkpoint from the hub into the local cache, with its weights."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from qserve.core.checkpoint import Checkpoint
from qserve.errors import ModelNotFound

__all__ = ["download"]

_FILES = ["*.json", "*.safetensors", "*.jinja", "*.txt", "*.model"]


def download(checkpoint: Checkpoint) -> Checkpoint:
    """The same checkpoint with a folder. Raises ModelNotFound when the hub can't or may not be asked."""
    from huggingface_hub import snapshot_download  # seconds to import, and only needed here
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError, OfflineModeIsEnabled

    try:
        folder = snapshot_download(checkpoint.id, allow_patterns=_FILES)
    except (LocalEntryNotFoundError, OfflineModeIsEnabled, HfHubHTTPError, OSError) as error:
        offline = (
            "HF_HUB_OFFLINE forbids asking the hub" if os.environ.get("HF_HUB_OFFLINE") else "the hub did not answer"
        )
        raise ModelNotFound(
            f"the weights of {checkpoint.id} are not on this machine, and {offline}. "
            "Give a folder that holds them (--model ./folder), or fetch them where there is a network"
        ) from error
    return replace(checkpoint, folder=Path(folder))
