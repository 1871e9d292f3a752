"""A checkpoint folder: config.json and the safetensors headers. Every way it can be broken has its message."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any, BinaryIO

from qserve.core.tensors import DTYPE_BYTES, Tensor
from qserve.errors import BrokenCheckpoint, ModelNotFound
from qserve.hub.bounded import check_kind, check_regular, read_json
from qserve.hub.weights import weight_files

__all__ = ["MAX_HEADER_BYTES", "check_count", "parse_header", "read_config", "read_header", "read_tensors"]

# The format allows 100 MB; a header that claims more is damage.
MAX_HEADER_BYTES = 100_000_000
# Qwen3-Next-80B in GPTQ has 300,000; each costs memory and time before anything is planned.
_MAX_TENSORS = 400_000
_MAX_DIMENSIONS = 8


def read_config(path: Path) -> dict[str, Any]:
    """config.json as a dict. Raises ModelNotFound without one, BrokenCheckpoint for damaged JSON."""
    file = path / "config.json"
    if not file.is_file():
        raise ModelNotFound(f"the folder {path} has no config.json; --model takes a Hugging Face checkpoint folder")
    check_regular(path)
    return read_json(file)


def read_tensors(path: Path) -> tuple[Tensor, ...] | None:
    """Every tensor of the folder's weights (`weight_files`), from their headers alone; None where there are none.

    Raises BrokenCheckpoint for a missing shard, a truncated file or a damaged header.
    """
    files, tensors = weight_files(path).read, list[Tensor]()
    for file in files:
        tensors += read_header(file)
        check_count(len(tensors), str(path))
    return tuple(tensors) if files else None


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
