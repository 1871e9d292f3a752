"""The private folder of a service: sockets, and files that hold internal keys. Only its user can enter it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

__all__ = ["PrivateFolder", "private_folder", "private_folders"]

_PREFIX = "qserve-"
_LOCK = "owner.lock"
_NEWBORN_S = 10.0
# A socket's path has 107 bytes (unix(7)); ours adds "/qserve-abcdefgh/" and a name, of which reward-100.sock has 15.
_LONGEST_PARENT = 107 - 17 - 20
_SHORT = Path("/tmp")  # noqa: S108 - a private folder is made in it


@dataclass
class PrivateFolder:
    """A folder that goes with us, unless it is given away.

    Attributes:
        path: where it is.
        lock: a descriptor of its lock, which is held as long as anybody has it open.
        is_given: another service has it now, and removes it.

    """

    path: Path
    lock: int
    is_given: bool = False

    @contextmanager
    def kept(self) -> Iterator[PrivateFolder]:
        """Removes it at the end."""
        try:
            yield self
        finally:
            if not self.is_given:
                shutil.rmtree(self.path, ignore_errors=True)
            os.close(self.lock)


@contextmanager
def private_folder() -> Iterator[PrivateFolder]:
    """A new folder. What a service that was killed by SIGKILL left behind is removed first."""
    parent = _parent()
    _sweep()
    path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
    lock = os.open(path / _LOCK, os.O_WRONLY | os.O_CREAT, 0o600)
    # Held as long as this process lives, however it ends.
    fcntl.flock(lock, fcntl.LOCK_EX)
    with PrivateFolder(path, lock).kept() as folder:
        yield folder


def private_folders() -> list[Path]:
    """Those of this user, of services that may have ended."""
    found = []
    for folder in _parent().glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):
            if folder.stat().st_uid == os.getuid():
                found.append(folder)
    return found


def _parent() -> Path:
    """The temporary folder, unless its name is so long that no socket could be made in it."""
    temporary = Path(tempfile.gettempdir())
    return temporary if len(os.fsencode(temporary)) <= _LONGEST_PARENT else _SHORT


def _sweep() -> None:
    for folder in private_folders():
        with contextlib.suppress(OSError):
            if _is_abandoned(folder / _LOCK):
                shutil.rmtree(folder)


def _is_abandoned(lock: Path) -> bool:
    if time.time() - lock.stat().st_mtime < _NEWBORN_S:  # made, and about to be locked
        return False
    with lock.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True
