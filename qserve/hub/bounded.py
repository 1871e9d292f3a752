"""Reads untrusted files of checkpoints: regular files only, with bounds on size and depth.

A folder is data. It may hold a pipe that never ends, an index that names files elsewhere, or JSON that is nested until
a parser gives up; each of these is one sentence here, before memory or time is spent on it.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterable
from pathlib import Path, PurePosixPath
from typing import Any

from qserve.errors import BrokenCheckpoint

__all__ = ["MAX_JSON_BYTES", "check_kind", "check_regular", "parse_json", "read_json", "shard_names"]

# An index of half a million tensors has 60 MB; config.json has kilobytes.
MAX_JSON_BYTES = 64 << 20
# The deepest config of a known model has 5 levels.
_MAX_DEPTH = 64
# DeepSeek-V3 has 163.
_MAX_SHARDS = 10_000
_KINDS = (
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


def check_regular(folder: Path) -> None:
    """Raises BrokenCheckpoint where the folder holds what is neither a file nor a folder, links followed."""
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                check_kind(Path(entry.path))
    except OSError as error:
        raise BrokenCheckpoint(f"{folder} can't be read: {error.strerror}; change its owner or rights") from None


def check_kind(file: Path) -> None:
    """Raises BrokenCheckpoint for a pipe, a socket or a device: opening it could wait for ever."""
    try:
        mode = file.stat().st_mode
    except OSError:  # a link to nowhere: whoever needs the file says that it is missing
        return
    for is_kind, kind in _KINDS:
        if is_kind(mode):
            raise BrokenCheckpoint(f"{file} is {kind}, and a checkpoint has regular files only; remove it")


def read_json(file: Path) -> dict[str, Any]:
    """The JSON object in a regular file. Raises BrokenCheckpoint for anything else, with what was seen."""
    check_kind(file)
    try:
        with file.open("rb") as stream:
            text = stream.read(MAX_JSON_BYTES + 1)
    except OSError as error:
        raise BrokenCheckpoint(f"{file} is not readable JSON ({error}); download it again") from None
    return parse_json(text, str(file))


def parse_json(text: bytes, where: str) -> dict[str, Any]:
    """The JSON object in `text`, at most MAX_JSON_BYTES long and 64 levels deep. Raises BrokenCheckpoint."""
    if len(text) > MAX_JSON_BYTES:
        raise BrokenCheckpoint(f"{where} is larger than {MAX_JSON_BYTES >> 20} MiB, and no checkpoint needs that much")
    try:
        data = json.loads(text)
    except RecursionError:
        raise BrokenCheckpoint(f"{where} is nested deeper than {_MAX_DEPTH} levels; download it again") from None
    except ValueError as error:
        raise BrokenCheckpoint(f"{where} is not readable JSON ({error}); download it again") from None
    if not isinstance(data, dict):
        raise BrokenCheckpoint(f"{where} is a JSON {type(data).__name__}, but must be an object")
    _check_depth(data, where)
    return data


def _check_depth(data: dict[str, Any], where: str) -> None:
    level: list[Any] = [data]
    for _ in range(_MAX_DEPTH):
        level = [child for value in level for child in _children(value) if isinstance(child, dict | list)]
        if not level:
            return
    raise BrokenCheckpoint(f"{where} is nested deeper than {_MAX_DEPTH} levels; download it again")


def _children(value: Any) -> Iterable[Any]:
    return value.values() if isinstance(value, dict) else value


def shard_names(index: dict[str, Any], where: str) -> list[str]:
    """The files that an index names, each below its own folder. Raises BrokenCheckpoint for any other name."""
    weight_map = index.get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise BrokenCheckpoint(f"{where} has no weight_map; download it again")
    outside = [name for name in weight_map.values() if not _is_below(name)]
    if outside:
        raise BrokenCheckpoint(
            f"{where} names the file {str(outside[0])[:200]!r}, which is not in its folder; an index may only name "
            "files of its folder. Nothing was opened; download the model again"
        )
    names = sorted(set(weight_map.values()))
    if len(names) > _MAX_SHARDS:
        raise BrokenCheckpoint(f"{where} names {len(names)} files; at most {_MAX_SHARDS} are read")
    return names


def _is_below(name: Any) -> bool:
    if not isinstance(name, str) or not name or "\0" in name or "\\" in name:
        return False
    path = PurePosixPath(name)
    return not path.is_absolute() and ".." not in path.parts
