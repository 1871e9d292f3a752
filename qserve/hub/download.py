"""A checkpoint from the hub into the library's cache: the files that are loaded, resumed and verified."""

from __future__ import annotations

import contextlib
import glob
import os
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from qserve.core.checkpoint import Checkpoint
from qserve.errors import BrokenCheckpoint, ModelNotFound, QserveError, UsageError
from qserve.hub.blob import Blob, digest_of, is_digest
from qserve.hub.bounded import read_index
from qserve.hub.cache import commit_of
from qserve.hub.growth import Arrived, watched
from qserve.hub.remote import gated
from qserve.hub.retries import patient
from qserve.hub.wanted import wanted_names
from qserve.hub.weight_names import INDEX
from qserve.units import format_bytes

__all__ = ["Listing", "download", "fetch", "listed"]

_LEAST_RESUMED = 16 << 20
"""Smaller files are left to the library, which begins them anew."""
_AT_ONCE = 8
Progress = Callable[[Arrived], None]


@dataclass(frozen=True)
class Listing:
    """The files of a checkpoint that are fetched, at one commit.

    Attributes:
        commit: what its revision is now.
        blobs: of all files that are loaded.
    """

    name: str
    commit: str
    blobs: tuple[Blob, ...]

    @property
    def num_bytes(self) -> int:
        """Of all of them."""
        return sum(blob.num_bytes for blob in self.blobs)

    @property
    def missing(self) -> tuple[Blob, ...]:
        """Those that the cache lacks; a file may be in it by another name."""
        return tuple({blob.digest: blob for blob in self.blobs if not blob.path.exists()}.values())

    @property
    def num_bytes_missing(self) -> int:
        """What is still to be fetched."""
        return sum(blob.num_bytes - blob.num_bytes_here for blob in self.missing)

    @property
    def num_bytes_free(self) -> int:
        """On the disk of the cache."""
        return shutil.disk_usage(self._disk).free

    def check_disk(self) -> None:
        """Raises UsageError where it is too small."""
        if (missing := self.num_bytes_missing) > (free := self.num_bytes_free):
            raise UsageError(
                f"{self.name} needs {format_bytes(missing)} more on disk, and {self._disk} has {format_bytes(free)} "
                "free; HF_HOME=/larger/disk moves the folder of models, and `qserve models rm` makes room"
            )

    @property
    def folder(self) -> Path:
        """Of the blobs."""
        return self.blobs[0].folder

    @property
    def _disk(self) -> Path:
        return next(one for one in self.folder.parents if one.is_dir())


def download(checkpoint: Checkpoint, progress: Progress = lambda arrived: None) -> Checkpoint:
    """The same checkpoint with a folder, at its revision; without one at main, and with the commit that main is.

    See `fetch`.
    """
    folder = fetch(checkpoint.id, checkpoint.revision, progress)
    return replace(checkpoint, folder=folder, revision=commit_of(folder) or checkpoint.revision)


def fetch(name: str, revision: str | None, progress: Progress = lambda arrived: None) -> Path:
    """The folder of a model of the hub in the library's cache, with every file that is loaded.

    Args:
        name: its id.
        revision: a branch, a tag or a commit; None: main.
        progress: called once a second with how much is there.

    Raises ModelNotFound when the hub can't or may not be asked, UsageError when the disk is too small, WrongContent for
    a file that comes with another checksum than the hub says.
    """
    from huggingface_hub.utils import disable_progress_bars

    disable_progress_bars()
    listing = listed(name, revision)
    missing = listing.missing
    listing.check_disk()
    total = sum(blob.num_bytes for blob in missing)
    with _told(name, revision), watched(listing.folder, total, progress, total - listing.num_bytes_missing):
        _fetch_all([blob for blob in missing if blob.num_bytes >= _LEAST_RESUMED])
        folder = _linked(listing, revision)
        if wrong := _wrong(missing):
            _fetch_all(wrong)
            folder = _linked(listing, revision)
    return folder


def listed(name: str, revision: str | None) -> Listing:
    """What the hub has of it. Raises ModelNotFound."""
    with _told(name, revision):
        return _listed(name, revision)


def _listed(name: str, revision: str | None) -> Listing:
    from huggingface_hub import HfApi

    info = patient(lambda: HfApi().model_info(name, revision=revision, files_metadata=True))
    files = {one.rfilename: one for one in info.siblings or ()}
    shards = []
    if INDEX in files:
        index = _blob(name, str(info.sha), files[INDEX])
        index.fetch(threading.Event())
        shards = read_index(index.path)
    blobs = [_blob(name, str(info.sha), files[one]) for one in wanted_names(list(files), shards) if one in files]
    if lost := set(shards) - files.keys():
        raise ModelNotFound(f"the hub lacks {len(lost)} of the files that the index of {name} names: {min(lost)}…")
    if not blobs:
        raise ModelNotFound(f"the hub has no file of {name} that a model is loaded from; is it a model?")
    return Listing(name, str(info.sha), tuple(blobs))


def _blob(name: str, commit: str, file: Any) -> Blob:
    """Of a file as the library lists it. Raises BrokenCheckpoint for a checksum that is none: it names a path here."""
    from huggingface_hub import constants, hf_hub_url

    digest = str(file.lfs.sha256 if file.lfs is not None else file.blob_id)
    if not is_digest(digest):
        raise BrokenCheckpoint(f"the hub has no checksum of {name}/{file.rfilename}, but {digest[:80]!r}")
    cache, own = Path(constants.HF_HUB_CACHE), f"models--{name.replace('/', '--')}"
    lock = cache / ".locks" / own / f"{digest}.lock"
    url = hf_hub_url(name, file.rfilename, revision=commit)
    return Blob(file.rfilename, file.size or 0, digest, url, cache / own / "blobs", lock)


def _fetch_all(blobs: Sequence[Blob]) -> None:
    """Several at once; the first error ends all, and so does Ctrl-C."""
    if not blobs:
        return
    stopped = threading.Event()
    with ThreadPoolExecutor(_AT_ONCE, "download") as pool:
        try:
            fetching = [pool.submit(blob.fetch, stopped) for blob in blobs]
            done, _ = wait(fetching, return_when=FIRST_EXCEPTION)
        finally:
            stopped.set()
    for one in done:
        one.result()


def _linked(listing: Listing, revision: str | None) -> Path:
    """The folder, with what is small and not there yet."""
    from huggingface_hub import snapshot_download

    names = [glob.escape(blob.name) for blob in listing.blobs]
    return Path(patient(lambda: snapshot_download(listing.name, revision=revision, allow_patterns=names)))


def _wrong(fetched: Sequence[Blob]) -> list[Blob]:
    """Files that the library fetched, and that are not what the hub says. They are removed."""
    small = [blob for blob in fetched if blob.num_bytes < _LEAST_RESUMED and blob.path.exists()]
    wrong = [blob for blob in small if digest_of(blob.path, blob.digest) != blob.digest]
    for blob in wrong:
        blob.path.unlink()
    return wrong


@contextlib.contextmanager
def _told(name: str, revision: str | None) -> Iterator[None]:
    """Raises ModelNotFound with the reason of what is raised within."""
    try:
        yield
    except QserveError:
        raise
    except Exception as error:  # also those of its HTTP client, which is another one from release to release
        named = name if revision is None else f"{name} at revision {revision}"
        raise ModelNotFound(f"the weights of {named} are not on this machine, and {_reason(name, error)}") from error


def _reason(name: str, error: BaseException) -> str:
    """Why it can't be fetched, and what to do."""
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError

    elsewhere = "Give a folder that has them (--model ./folder), or fetch them where there is a network"
    again = "What came is kept, and the same command goes on from there"
    if os.environ.get("HF_HUB_OFFLINE"):
        return f"HF_HUB_OFFLINE forbids asking the hub. {elsewhere}"
    causes = [error, *_causes(error)]
    if any(isinstance(one, RevisionNotFoundError) for one in causes):
        return "the hub has no such revision: --revision takes a branch, a tag or a commit"
    if any(isinstance(one, GatedRepoError) for one in causes):
        return gated(name)
    if any(isinstance(one, RepositoryNotFoundError) for one in causes):
        return "the hub does not show them to us: the name is wrong, or HF_TOKEN is needed"
    if any(isinstance(one, OSError) and one.strerror for one in causes):
        told = next(one.strerror for one in causes if isinstance(one, OSError) and one.strerror)
        return f"fetching them failed: {told}. {again}. {elsewhere}"
    told = (str(causes[-1]) or type(causes[-1]).__name__).splitlines()[0].rstrip(". ")
    return f"the hub did not answer ({told[:200]}). {again}. {elsewhere}"


def _causes(error: BaseException) -> list[BaseException]:
    """What led to it, the first cause last."""
    found: list[BaseException] = []
    while (cause := error.__cause__ or error.__context__) is not None and cause not in found:
        found.append(cause)
        error = cause
    return found
