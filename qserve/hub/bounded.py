"""Reads untrusted files of checkpoints, JSON and the headers of safetensors: regular files only, with bounds on size.

A folder is data. It may hold a pipe that never ends, an index that names files elsewhere, or JSON that is nested until
a parser gives up; each of these is one sentence here, before memory or time is spent on it.
"""

from __future__ import annotations

import json
import os
import stat
import struct
from collections.abc import Iterable
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

from qserve.core.tensors import DTYPE_BYTES, Tensor
from qserve.errors import BrokenCheckpoint

__all__ = [
    "MAX_HEADER_BYTES",
    "MAX_JSON_BYTES",
    "check_count",
    "check_kind",
    "check_regular",
    "is_below",
    "parse_header",
    "parse_json",
    "read_header",
    "read_index",
    "read_json",
    "read_json_list",
    "shard_names",
]

# An index of half a million tensors has 60 MB; config.json has kilobytes.
MAX_JSON_BYTES = 64 << 20
# The deepest config of a known model has 5 levels.
_MAX_DEPTH = 64
# DeepSeek-V3 has 163.
_MAX_SHARDS = 10_000
# The format allows 100 MB; a header that claims more is damage.
MAX_HEADER_BYTES = 100_000_000
# Qwen3-Next-80B in GPTQ has 300,000; each costs memory and time before anything is planned.
_MAX_TENSORS = 400_000
_MAX_DIMENSIONS = 8
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
    return parse_json(_bytes_of(file), str(file))


def read_json_list(file: Path) -> list[Any]:
    """The JSON list in a regular file. Raises as `read_json` does."""
    data = _parsed(_bytes_of(file), str(file))
    if not isinstance(data, list):
        raise BrokenCheckpoint(f"{file} is a JSON {type(data).__name__}, but must be a list")
    return data


def _bytes_of(file: Path) -> bytes:
    check_kind(file)
    try:
        with file.open("rb") as stream:
            return stream.read(MAX_JSON_BYTES + 1)
    except OSError as error:
        raise BrokenCheckpoint(f"{file} is not readable JSON ({error}); download it again") from None


def parse_json(text: bytes, where: str) -> dict[str, Any]:
    """The JSON object in `text`, at most MAX_JSON_BYTES long and 64 levels deep. Raises BrokenCheckpoint."""
    data = _parsed(text, where)
    if not isinstance(data, dict):
        raise BrokenCheckpoint(f"{where} is a JSON {type(data).__name__}, but must be an object")
    return data


def _parsed(text: bytes, where: str) -> Any:
    if len(text) > MAX_JSON_BYTES:
        raise BrokenCheckpoint(f"{where} is larger than {MAX_JSON_BYTES >> 20} MiB, and no checkpoint needs that much")
    try:
        data = json.loads(text)
    except RecursionError:
        raise BrokenCheckpoint(f"{where} is nested deeper than {_MAX_DEPTH} levels; download it again") from None
    except ValueError as error:
        raise BrokenCheckpoint(f"{where} is not readable JSON ({error}); download it again") from None
    _check_depth(data, where)
    return data


def _check_depth(data: Any, where: str) -> None:
    level: list[Any] = [data]
    for _ in range(_MAX_DEPTH):
        level = [child for value in level for child in _children(value) if isinstance(child, dict | list)]
        if not level:
            return
    raise BrokenCheckpoint(f"{where} is nested deeper than {_MAX_DEPTH} levels; download it again")


def _children(value: Any) -> Iterable[Any]:
    return value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()


def read_index(file: Path) -> list[str]:
    """The names of the shards in an index (*.index.json). Raises BrokenCheckpoint."""
    return shard_names(read_json(file), str(file))


def shard_names(index: dict[str, Any], where: str) -> list[str]:
    """The files that an index names, each below its own folder. Raises BrokenCheckpoint for any other name."""
    weight_map = index.get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise BrokenCheckpoint(f"{where} has no weight_map; download it again")
    outside = [name for name in weight_map.values() if not is_below(name)]
    if outside:
        raise BrokenCheckpoint(
            f"{where} names the file {str(outside[0])[:200]!r}, which is not in its folder; an index may only name "
            "files of its folder. Nothing was opened; download the model again"
        )
    names = sorted(set(weight_map.values()))
    if len(names) > _MAX_SHARDS:
        raise BrokenCheckpoint(f"{where} names {len(names)} files; at most {_MAX_SHARDS} are read")
    return names


def is_below(name: Any) -> bool:
    """Whether a file's name stays within its own folder."""
    if not isinstance(name, str) or not name or "\0" in name or "\\" in name:
        return False
    path = PurePosixPath(name)
    return not path.is_absolute() and ".." not in path.parts


def read_header(file: Path) -> tuple[Tensor, ...]:
    """Every tensor of one safetensors file. Raises BrokenCheckpoint for one that can't be read, or is truncated."""
    check_kind(file)
    try:
        with file.open("rb") as stream:
            header = _header_bytes(stream, file)
            data_begin = stream.tell()
    except OSError as error:
        raise BrokenCheckpoint(f"{file} can't be read: {error.strerror}; change its owner or rights") from None
    tensors, data_bytes = parse_header(header, str(file))
    missing_bytes = data_begin + data_bytes - file.stat().st_size
    if missing_bytes > 0:
        raise BrokenCheckpoint(f"{file} is truncated: {missing_bytes} bytes are missing; download it again")
    return tensors


def _header_bytes(stream: BinaryIO, file: Path) -> bytes:
    prefix = stream.read(8)
    header_bytes = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else -1
    if not 0 < header_bytes <= MAX_HEADER_BYTES:
        raise BrokenCheckpoint(f"{file} does not begin with a safetensors header; download it again")
    header = stream.read(header_bytes)
    if len(header) < header_bytes:
        raise BrokenCheckpoint(f"{file} is truncated inside its header; download it again")
    return header


def check_count(num_tensors: int, where: str) -> None:
    """Raises BrokenCheckpoint for more tensors than any model has."""
    if num_tensors > _MAX_TENSORS:
        raise BrokenCheckpoint(
            f"{where} lists {num_tensors} tensors or more, and at most {_MAX_TENSORS} are read; download it again"
        )


def parse_header(header: bytes, where: str) -> tuple[tuple[Tensor, ...], int]:
    """Tensors of one JSON header, and the bytes of data that it promises. Raises BrokenCheckpoint."""
    check_count(header.count(b'"data_offsets"'), f"the header of {where}")
    try:
        entries = json.loads(header)
        entries.pop("__metadata__", None)
        tensors = tuple(_tensor(name, entry) for name, entry in entries.items())
        data_bytes = max((entry["data_offsets"][1] for entry in entries.values()), default=0)
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError) as error:
        raise BrokenCheckpoint(
            f"the header of {where} is not a safetensors header ({error}); download it again"
        ) from None
    return tensors, data_bytes


def _tensor(name: str, entry: dict[str, Any]) -> Tensor:
    begin, end = entry["data_offsets"]
    if entry["dtype"] not in DTYPE_BYTES:
        raise ValueError(f"tensor {name} has the unknown dtype {entry['dtype']!r}")
    shape = tuple(entry["shape"])
    if len(shape) > _MAX_DIMENSIONS or not all(_is_size(number) for number in (begin, end, *shape)) or end < begin:
        raise ValueError(f"tensor {name} has the shape {shape!r} at bytes {begin!r} to {end!r}"[:300])
    return Tensor(name, entry["dtype"], shape, end - begin)


def _is_size(number: Any) -> bool:
    return type(number) is int and 0 <= number < 1 << 63
