"""What packed weights are valid for: the checkpoint's content, the plan's format, and the code that packs and reads."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import re
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from qserve.model.cpu.build import fingerprint
from qserve.planner.plan import Plan

__all__ = ["checkpoint_digest", "packed_key"]

_LIBRARIES = ("torch", "transformers", "bitsandbytes")
_SOURCES = Path(__file__).parents[1]
# Of each file: the header whole, up to so many pieces of the rest, as far apart as they can be.
_MOST_PIECES, _PIECE_BYTES, _APART_BYTES = 1024, 4096, 1 << 22
_SHA256 = re.compile(r"[0-9a-f]{64}")


def packed_key(folder: Path, plan: Plan, part: str = "model") -> str:
    """Names the packed form of `part` of the checkpoint in `folder` as `plan` loads it. Raises OSError.

    What is packed stands before the dash, by which code behind it: another version's file is of no use any more.
    """
    content = (checkpoint_digest(folder), plan.quant.scheme, plan.quant.in_flight, plan.dtype, part)
    code = (fingerprint(), _sources_digest(), [_version(name) for name in _LIBRARIES])
    return "-".join(hashlib.sha256(json.dumps(part).encode()).hexdigest()[:20] for part in (content, code))


def checkpoint_digest(folder: Path) -> str:
    """SHA-256 of config.json and of what identifies each safetensors file.

    A file of the hub's cache is named by its SHA-256. Any other is known by its header, size, time of change, and
    pieces of 4 KiB, 4 MiB apart (1,024 at most): reading all of 16 GB would take longer than loading.
    """
    about = hashlib.sha256((folder / "config.json").read_bytes())
    for file in sorted(folder.glob("*.safetensors")):
        about.update(file.name.encode())
        real = file.resolve()
        if _SHA256.fullmatch(real.name) and real.parent.name == "blobs":
            about.update(real.name.encode())
            continue
        for part in _samples(real):
            about.update(part)
    return about.hexdigest()


def _samples(file: Path) -> Iterator[bytes]:
    with file.open("rb") as opened:
        status = os.fstat(opened.fileno())
        yield f"{status.st_size} {status.st_mtime_ns}".encode()
        length = int.from_bytes(opened.read(8), "little")
        yield opened.read(min(length, status.st_size))
        step = max(_APART_BYTES, status.st_size // _MOST_PIECES)
        for begin in (*range(0, status.st_size, step), max(0, status.st_size - _PIECE_BYTES)):
            yield os.pread(opened.fileno(), _PIECE_BYTES, begin)


@functools.cache
def _sources_digest() -> str:
    """Of every module that quantizes or packs: no number that somebody has to remember to raise."""
    about = hashlib.sha256()
    for source in sorted(_SOURCES.rglob("*.py")):
        about.update(source.read_bytes())
    return about.hexdigest()


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
