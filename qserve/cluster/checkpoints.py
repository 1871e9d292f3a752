"""Finds a checkpoint on a node: at the same path, or by its name."""

from __future__ import annotations

import enum
import hashlib
from dataclasses import dataclass
from pathlib import Path

from qserve.errors import QserveError, UsageError

__all__ = ["CheckpointKey", "Location", "checkpoint_folder", "key_of", "locate_checkpoint"]

_WEIGHTS = ("*.safetensors", "*.bin", "*.pt", "*.gguf")


class Location(enum.StrEnum):
    """How a node gets at a checkpoint."""

    SAME_PATH = "at the same path"
    OWN_PATH = "at a path of its own"
    FETCHED = "fetched from the hub when it starts"
    MISSING = "missing"
    OTHER = "another one at that path"


@dataclass(frozen=True)
class CheckpointKey:
    """What tells one checkpoint from another without reading it: its configuration and the sizes of its weights."""

    digest: str


def key_of(folder: Path) -> CheckpointKey | None:
    """None where there is no such folder, or no configuration in it."""
    try:
        digest = hashlib.sha256((folder / "config.json").read_bytes())
        for file in sorted(file for kind in _WEIGHTS for file in folder.glob(kind)):
            digest.update(f"{file.name} {file.stat().st_size}\n".encode())
    except OSError:
        return None
    return CheckpointKey(digest.hexdigest())


def locate_checkpoint(folder: Path, name: str, wanted: CheckpointKey | None) -> Location:
    """How this machine gets at the checkpoint that the service found in `folder`.

    `name`: by which it can be looked up here, or ""; `wanted` None: of a folder that holds no such files.
    """
    here = key_of(folder)
    if here == wanted and folder.exists():
        return Location.SAME_PATH
    own = _by_name(name)
    if own is not None:
        return Location.OWN_PATH if key_of(own) == wanted else Location.OTHER
    if _is_hub_id(name):
        return Location.FETCHED
    return Location.OTHER if folder.exists() else Location.MISSING


def checkpoint_folder(folder: Path, name: str, wanted: CheckpointKey | None) -> Path:
    """The checkpoint's folder on this machine; fetched from the hub where it is not there.

    Arguments as of `locate_checkpoint`: a node may have come after the others were asked. Raises UsageError.
    """
    way = locate_checkpoint(folder, name, wanted)
    if way is Location.SAME_PATH:
        return folder
    if way is Location.FETCHED:
        return _fetched(name)
    own = _by_name(name) if way is Location.OWN_PATH else None
    if own is None:
        what = f"there is no {folder}" if way is Location.MISSING else f"there is another checkpoint at {folder}"
        raise UsageError(f"{what} on this node; put it on a path that all nodes share, or copy it there")
    return own


def _fetched(name: str) -> Path:
    from qserve.hub.download import download
    from qserve.hub.resolve import resolve

    folder = download(resolve(name)).folder
    assert folder is not None, "a download has a folder"
    return folder


def _by_name(name: str) -> Path | None:
    if not name:
        return None
    from qserve.hub.resolve import resolve

    try:
        return resolve(name).folder
    except QserveError:
        return None


def _is_hub_id(name: str) -> bool:
    return name.count("/") == 1 and not name.startswith((".", "/", "~"))
