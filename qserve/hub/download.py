"""A checkpoint from the hub into the local cache, with its weights."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from qserve.core.checkpoint import Checkpoint
from qserve.errors import ModelNotFound, UsageError
from qserve.hub.cache import commit_of
from qserve.hub.growth import watched
from qserve.units import format_bytes

__all__ = ["download"]

_FILES = ["*.json", "*.safetensors", "*.jinja", "*.txt", "*.model"]
Progress = Callable[[str], None]


def download(checkpoint: Checkpoint, progress: Progress | None = None) -> Checkpoint:
    """The same checkpoint with a folder, at its revision; without one at main, and with the commit that main is.

    Args:
        checkpoint: of the hub.
        progress: called once a second with how much is there, in place of the library's own bars.

    Raises ModelNotFound when the hub can't or may not be asked, UsageError when the disk is too small.
    """
    from huggingface_hub import snapshot_download  # seconds to import, and only needed here
    from huggingface_hub.utils import disable_progress_bars

    if progress is None:
        return _with_folder(checkpoint, _fetched(checkpoint, snapshot_download))
    disable_progress_bars()
    missing = _missing(_fetched(checkpoint, snapshot_download, dry_run=True))
    blobs = _blobs(checkpoint.id)
    _check_disk(checkpoint.id, missing, blobs)
    with watched(blobs, missing, progress):
        return _with_folder(checkpoint, _fetched(checkpoint, snapshot_download))


def _with_folder(checkpoint: Checkpoint, folder: str) -> Checkpoint:
    """In the cache a folder is called by its commit."""
    return replace(checkpoint, folder=Path(folder), revision=commit_of(Path(folder)) or checkpoint.revision)


def _fetched(checkpoint: Checkpoint, snapshot_download: Callable[..., Any], **options: Any) -> Any:
    """What the library returns, at the checkpoint's revision. Raises ModelNotFound with its reason."""
    revision = checkpoint.revision
    name = checkpoint.id if revision is None else f"{checkpoint.id} at revision {revision}"
    try:
        return snapshot_download(checkpoint.id, revision=revision, allow_patterns=_FILES, **options)
    except Exception as error:  # also those of its HTTP client, which is another one from release to release
        raise ModelNotFound(f"the weights of {name} are not on this machine, and {_reason(error)}") from error


def _missing(files: Sequence[Any]) -> int:
    """Bytes of the files that will be fetched."""
    return sum(file.file_size or 0 for file in files if file.will_download)


def _blobs(name: str) -> Path:
    """Where the library writes them, complete or not."""
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE) / f"models--{name.replace('/', '--')}" / "blobs"


def _check_disk(name: str, missing: int, blobs: Path) -> None:
    there = next(folder for folder in blobs.parents if folder.is_dir())
    free = shutil.disk_usage(there).free
    if missing > free:
        raise UsageError(
            f"{name} needs {format_bytes(missing)} more on disk, and {there} has {format_bytes(free)} free; "
            "HF_HOME=/larger/disk moves the folder of models"
        )


def _reason(error: BaseException) -> str:
    """Why it can't be fetched, and what to do."""
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError

    elsewhere = "Give a folder that has them (--model ./folder), or fetch them where there is a network"
    if os.environ.get("HF_HUB_OFFLINE"):
        return f"HF_HUB_OFFLINE forbids asking the hub. {elsewhere}"
    causes = [error, *_causes(error)]
    if any(isinstance(one, RevisionNotFoundError) for one in causes):
        return "the hub has no such revision: --revision takes a branch, a tag or a commit"
    if any(isinstance(one, (GatedRepoError, RepositoryNotFoundError)) for one in causes):
        return "the hub does not show them to us: the name is wrong, or HF_TOKEN is needed"
    if any(isinstance(one, OSError) and one.strerror for one in causes):
        told = next(one.strerror for one in causes if isinstance(one, OSError) and one.strerror)
        return f"fetching them failed: {told}. {elsewhere}"
    told = (str(causes[-1]) or type(causes[-1]).__name__).splitlines()[0].rstrip(". ")
    return f"the hub did not answer ({told[:200]}). {elsewhere}"


def _causes(error: BaseException) -> list[BaseException]:
    """What led to it, the first cause last."""
    found: list[BaseException] = []
    while (cause := error.__cause__ or error.__context__) is not None and cause not in found:
        found.append(cause)
        error = cause
    return found
