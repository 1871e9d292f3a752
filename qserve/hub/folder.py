"""A checkpoint folder: config.json and the safetensors headers. Every way it can be broken has its message."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any, BinaryIO

from qserve.core.tensors import DTYPE_BYTES, Tensor
from qserve.errors import BrokenCheckpoint, ModelNotFound

__all__ = ["parse_header", "read_config", "read_header", "read_tensors"]

# The format allows 100 MB; a header that claims more is damage.
_MAX_HEADER_BYTES = 100_000_000


def read_config(path: Path) -> dict[str, Any]:
    """config.json as a dict. Raises ModelNotFound without one, BrokenCheckpoint for damaged JSON."""
    file = path / "config.json"
    if not file.is_file():
        raise ModelNotFound(f"the folder {path} has no config.json; --model wants a Hugging Face checkpoint folder")
    return _read_json(file)


def read_tensors(path: Path) -> tuple[Tensor, ...] | None:
    """Every tensor of the folder's safetensors files, from their headers alone; None where there are no such files.

    Raises BrokenCheckpoint for a missing shard, a truncated file or a damaged header.
    """
    files = _files(path)
    return tuple(tensor for file in files for tensor in read_header(file)) if files else None


def parse_header(header: bytes, where: str) -> tuple[tuple[Tensor, ...], int]:
    """Tensors of one JSON header, and the bytes of data that it promises. Raises BrokenCheckpoint."""
    try:
        entries = json.loads(header)
        entries.pop("__metadata__", None)
        tensors = tuple(_tensor(name, entry) for name, entry in entries.items())
        data_bytes = max((entry["data_offsets"][1] for entry in entries.values()), default=0)
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise BrokenCheckpoint(f"the header of {where} is no safetensors header ({error}); download it again") from None
    return tensors, data_bytes


def _tensor(name: str, entry: dict[str, Any]) -> Tensor:
    begin, end = entry["data_offsets"]
    if entry["dtype"] not in DTYPE_BYTES:
        raise ValueError(f"tensor {name} has the unknown dtype {entry['dtype']!r}")
    return Tensor(name, entry["dtype"], tuple(entry["shape"]), int(end) - int(begin))


def _files(path: Path) -> list[Path]:
    index = path / "model.safetensors.index.json"
    if not index.is_file():
        return sorted(path.glob("*.safetensors"))
    weight_map = _read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise BrokenCheckpoint(f"{index} has no weight_map; download it again")
    files = [path / name for name in sorted(set(weight_map.values()))]
    missing = [file.name for file in files if not file.is_file()]
    if missing:
        raise BrokenCheckpoint(
            f"{path} lacks {len(missing)} of {len(files)} shards ({', '.join(missing[:3])}…); "
            "download the model again, for example: hf download"
        )
    return files


def read_header(file: Path) -> tuple[Tensor, ...]:
    """Every tensor of one safetensors file. Raises BrokenCheckpoint for one that can't be read, or is truncated."""
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
    if not 0 < header_bytes <= _MAX_HEADER_BYTES:
        raise BrokenCheckpoint(f"{file} does not begin with a safetensors header; download it again")
    header = stream.read(header_bytes)
    if len(header) < header_bytes:
        raise BrokenCheckpoint(f"{file} is truncated inside its header; download it again")
    return header


def _read_json(file: Path) -> dict[str, Any]:
    try:
        data = json.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise BrokenCheckpoint(f"{file} is no readable JSON ({error}); download it again") from None
    if not isinstance(data, dict):
        raise BrokenCheckpoint(f"{file} holds a JSON {type(data).__name__}, but must hold an object")
    return data
