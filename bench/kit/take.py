"""On the machine with the card: a part is checked, kept outside of the tree, unpacked with the others of its archive.

The standard library alone: it is run by the Python that is there.
"""

from __future__ import annotations

import shutil
import tarfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.kit.parts import Part, digest_of

__all__ = ["NotWhole", "take"]


class NotWhole(Exception):
    """A part, or all of an archive's, came otherwise than it was packed."""


def take(folder: Path, home: Path) -> str:
    """Keep the part that lies in `folder` below `home`; unpack its archive into `home/NAME` once all are there.

    Returns what was done, as a line. Raises NotWhole for what has to be brought again.
    """
    began = time.perf_counter()
    try:
        part = Part.read(folder)
    except (OSError, ValueError, TypeError) as error:
        raise NotWhole(f"{folder} has no whole part ({type(error).__name__}: {error}); bring it again") from error
    if why_not := part.why_not_whole(folder):
        raise NotWhole(f"{folder}: {why_not}; bring it again")
    _keep(part, folder, home)
    pieces = _pieces(part, home)
    done = f"{part.archive}: piece {part.number} of {part.of} is whole"
    if len(pieces) == part.of:
        size = _unpack(part, pieces, home)
        done += f"; unpacked {size / 2**20:.0f} MiB into {home / part.archive}"
    else:
        done += f", {len(pieces)} of {part.of} are here"
    return f"{done} ({time.perf_counter() - began:.1f} s)"


def _keep(part: Part, folder: Path, home: Path) -> None:
    kept = home / "pieces" / f"{part.archive}-{part.number}"
    part.write(kept, part.piece(folder).read_bytes())


def _pieces(part: Part, home: Path) -> list[Path]:
    """In their order, those of the same archive that are kept: an older one's don't count."""
    kept = [home / "pieces" / f"{part.archive}-{number}" for number in range(1, part.of + 1)]
    notes = [(folder, Part.read(folder)) for folder in kept if folder.exists()]
    same = [folder for folder, other in notes if (other.archive_sha256, other.of) == (part.archive_sha256, part.of)]
    return [part.piece(folder) for folder in same]


def _unpack(part: Part, pieces: list[Path], home: Path) -> int:
    """Size of what was unpacked, in bytes."""
    if digest_of(pieces) != part.archive_sha256:
        raise NotWhole(f"the {part.of} pieces of {part.archive} do not make what was packed; bring all of them again")
    fresh = home / f"{part.archive}.unfinished"
    shutil.rmtree(fresh, ignore_errors=True)
    with _joined(pieces, home) as joined, tarfile.open(joined, "r:xz") as tar:
        tar.extractall(fresh, filter="data")
    shutil.rmtree(home / part.archive, ignore_errors=True)
    fresh.rename(home / part.archive)
    return sum(file.stat().st_size for file in (home / part.archive).rglob("*") if file.is_file())


@contextmanager
def _joined(pieces: list[Path], home: Path) -> Iterator[Path]:
    joined = home / "joined.tar.xz"
    with joined.open("wb") as whole:
        for piece in pieces:
            with piece.open("rb") as opened:
                shutil.copyfileobj(opened, whole)
    try:
        yield joined
    finally:
        joined.unlink()
