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
from pathlib import Path

__all__ = ["private_folder"]

_PREFIX = "qserve-"
_LOCK = "owner.lock"
_NEWBORN_S = 10.0
# A socket's path has 107 bytes (unix(7)); ours adds "/qserve-abcdefgh/reward.sock".
_LONGEST_PARENT = 107 - 28
_SHORT = Path("/tmp")  # noqa: S108 - a private folder is made in it


@contextmanager
def private_folder() -> Iterator[Path]:
    """A folder that goes with us. What a service that was killed by SIGKILL left behind is removed first."""
    parent = _parent()
    _sweep(parent)
    with tempfile.TemporaryDirectory(prefix=_PREFIX, dir=parent) as name:
        folder = Path(name)
        with (folder / _LOCK).open("w") as lock:
            # Held as long as this process lives, however it ends.
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield folder


def _parent() -> Path:
    """The temporary folder, unless its name is so long that no socket could be made in it."""
    temporary = Path(tempfile.gettempdir())
    return temporary if len(os.fsencode(temporary)) <= _LONGEST_PARENT else _SHORT


def _sweep(temporary: Path) -> None:
    for folder in temporary.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):
            if folder.stat().st_uid == os.getuid() and _is_abandoned(folder / _LOCK):
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
