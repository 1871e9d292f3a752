"""The folder of packed weights: found, written at once or not at all, bounded, and locked while one is made."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from qserve.model.cpu.build import cache_folder, is_ours
from qserve.model.packed_cache.tensor_file import PACKED_SUFFIX, BrokenFile, MappedTensors, file_bytes, write_tensors
from qserve.units import MIB, format_bytes

__all__ = ["PackedFolder", "packed_folder"]

_PARTIAL = "partial-"
_log = logging.getLogger("qserve.worker")
# Free space that writing leaves on the disk.
_LEFT_FREE_BYTES = 1024 * MIB
_LONGEST_WRITE_S = 3600.0
_WAIT_S, _SAY_EVERY_S, _LONGEST_WAIT_S = 0.2, 20.0, 1800.0


def packed_folder(most_bytes: int) -> PackedFolder:
    """The user's, for files of `most_bytes` together."""
    return PackedFolder(cache_folder() / "packed", most_bytes)


@dataclass(frozen=True)
class PackedFolder:
    """Files by key; the one that was used longest ago goes first. `most_bytes` 0: none is kept."""

    root: Path
    most_bytes: int

    def path(self, key: str) -> Path:
        """Where the file of `key` is, if there is one."""
        return self.root / f"{key}{PACKED_SUFFIX}"

    def find(self, key: str, *, is_new: bool = False) -> MappedTensors | None:
        """What was kept. A file that is damaged, or of somebody else, is removed, and said so in the log.

        `is_new`: as `MappedTensors.of`.
        """
        path = self.path(key)
        try:
            if not is_ours(path):
                raise BrokenFile("another user may write to it")
            found = MappedTensors.of(path, is_new=is_new)
            os.utime(path)
        except FileNotFoundError:
            return None
        except (BrokenFile, OSError, ValueError, KeyError) as error:
            self.remove(key, str(error))
            return None
        return found

    def remove(self, key: str, why: str) -> None:
        """A file that is of no use; it is made again."""
        _log.warning("packed weights in %s can't be used (%s); they are made again", self.path(key), why)
        with contextlib.suppress(OSError):
            self.path(key).unlink()

    @contextlib.contextmanager
    def locked(self, key: str) -> Iterator[None]:
        """While one process makes the file of `key`, others wait here, and find it then.

        Nobody waits for ever, nor where there are no locks (a disk of another machine): then both make it.
        """
        with contextlib.ExitStack() as stack:
            try:
                self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
                file = stack.enter_context((self.root / f"{key}.lock").open("w"))
                _wait_for(file.fileno(), key)
            except OSError as error:
                _log.info("packed weights are not locked: %s", error)
            yield

    def write(self, key: str, about: Mapping[str, Any], tensors: Mapping[str, torch.Tensor]) -> str | None:
        """Keep them; half a sentence where that was not possible. Nothing is left of a file that was begun."""
        needed = file_bytes(tensors)
        try:
            why = self._why_no_room(needed)
            if why is None:
                with tempfile.NamedTemporaryFile(dir=self.root, prefix=_PARTIAL, delete=False) as file:
                    try:
                        write_tensors(file, about, tensors)
                        file.flush()
                        Path(file.name).replace(self.path(key))
                        self._remove_other_versions(key)
                    except BaseException:
                        Path(file.name).unlink(missing_ok=True)
                        raise
        except OSError as error:
            return str(error)
        return why

    def entries(self) -> list[tuple[Path, os.stat_result]]:
        """The files, that which was used longest ago first."""
        found = []
        for path in self.root.glob(f"*{PACKED_SUFFIX}"):
            with contextlib.suppress(OSError):
                found.append((path, path.stat()))
        return sorted(found, key=lambda entry: entry[1].st_mtime)

    def _why_no_room(self, needed: int) -> str | None:
        """Makes room for so many bytes."""
        self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not is_ours(self.root):
            return f"others may write to {self.root}"
        if needed > self.most_bytes:
            return f"they take {format_bytes(needed)}, and at most {format_bytes(self.most_bytes)} may be kept"
        self._sweep()
        sizes = {path: status.st_size for path, status in self.entries()}
        free = shutil.disk_usage(self.root).free
        if needed + _LEFT_FREE_BYTES > free + sum(sizes.values()):
            return f"they take {format_bytes(needed)}, and the disk of {self.root} has {format_bytes(free)} free"
        for oldest in list(sizes):
            if needed + sum(sizes.values()) <= self.most_bytes and needed + _LEFT_FREE_BYTES <= free:
                break
            _log.info("removing %s to make room for other packed weights", oldest)
            oldest.unlink(missing_ok=True)
            free += sizes.pop(oldest)
        return None

    def _remove_other_versions(self, key: str) -> None:
        """The same weights as other code packed them."""
        for path in self.root.glob(f"{key.partition('-')[0]}-*{PACKED_SUFFIX}"):
            if path != self.path(key):
                path.unlink(missing_ok=True)

    def _sweep(self) -> None:
        """Remove what a process left that was killed while it wrote."""
        for path in self.root.glob(f"{_PARTIAL}*"):
            with contextlib.suppress(OSError):
                if time.time() - path.stat().st_mtime > _LONGEST_WRITE_S:
                    path.unlink()


def _wait_for(descriptor: int, key: str) -> None:
    began_s = said_s = time.monotonic()
    while time.monotonic() - began_s < _LONGEST_WAIT_S:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(_WAIT_S)
        else:
            return
        if time.monotonic() - said_s > _SAY_EVERY_S:
            said_s = time.monotonic()
            _log.info("another process packs these weights (%s); waiting for it", key)
