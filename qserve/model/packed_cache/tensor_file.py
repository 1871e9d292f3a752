"""A file of tensors that is mapped as it is: begin, sizes and sums in its head, each tensor at a cache line.

    "qserve-packed-1\n" · length of the head, 8 bytes · SHA-256 of the head · the head, JSON · tensors from a page on

Of each tensor the head has a sum, of its 64-bit words modulo 2^64. Reading them all takes as long as memory is slow, so
what a crash, a full disk or a foreign program left in a file is found before anything computes with it.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import struct
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, BinaryIO

import torch

__all__ = ["PACKED_SUFFIX", "BrokenFile", "MappedTensors", "file_bytes", "write_tensors"]

PACKED_SUFFIX = ".qserve-packed"
_MAGIC = b"qserve-packed-1\n"
_PREFIX = struct.Struct(f"<{len(_MAGIC)}sQ32s")
_LINE, _PAGE, _WORD = 64, 4096, 8
# A model of 400,000 tensors has less.
_MOST_HEAD_BYTES = 1 << 28
_PIECE = 1 << 24


class BrokenFile(Exception):
    """Why a file is not what `write_tensors` wrote: half a sentence."""


@dataclass(frozen=True)
class MappedTensors:
    """What a file holds. `tensors` lie in the file, and nobody may write to them."""

    about: Mapping[str, Any]
    tensors: Mapping[str, torch.Tensor]
    num_bytes: int

    @classmethod
    def of(cls, path: Path, *, is_new: bool = False) -> MappedTensors:
        """Raises BrokenFile, or OSError where it can't be read.

        `is_new`: this process wrote it a moment ago, so its sums are not read.
        """
        with path.open("rb") as file:
            head, begin = _read_head(file)
            size = file.seek(0, 2)
            if size != begin + head["data_bytes"]:
                raise BrokenFile(f"it has {size} bytes, and should have {begin + head['data_bytes']}")
            whole = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # that it can't be written to
            memory = torch.frombuffer(whole, dtype=torch.uint8)
        tensors = {name: _tensor(memory, begin, entry) for name, entry in head["tensors"].items()}
        for name, entry in head["tensors"].items():
            if not is_new and _sum_of(tensors[name]) != entry["sum"]:
                raise BrokenFile(f"{name} has changed since it was written")
        return cls(head["about"], tensors, size)


def file_bytes(tensors: Mapping[str, torch.Tensor]) -> int:
    """About what a file of `tensors` takes; never less."""
    return sum(_rounded_up(tensor.nbytes, _LINE) for tensor in tensors.values()) + _PAGE + 1024 * (1 + len(tensors))


def write_tensors(file: IO[bytes], about: Mapping[str, Any], tensors: Mapping[str, torch.Tensor]) -> None:
    """Write a whole file: `tensors` are contiguous and in RAM, `about` is JSON. Raises OSError."""
    entries, begin = {}, 0
    for name, tensor in tensors.items():
        entries[name] = {
            "dtype": str(tensor.dtype).removeprefix("torch."),
            "shape": list(tensor.shape),
            "begin": begin,
            "sum": _sum_of(tensor),
        }
        begin += _rounded_up(tensor.nbytes, _LINE)
    head = json.dumps({"about": about, "tensors": entries, "data_bytes": begin}).encode()
    file.write(_PREFIX.pack(_MAGIC, len(head), hashlib.sha256(head).digest()) + head)
    file.write(bytes(_data_begin(len(head)) - _PREFIX.size - len(head)))
    for tensor in tensors.values():
        _write(file, tensor)


def _write(file: IO[bytes], tensor: torch.Tensor) -> None:
    whole = tensor.detach().contiguous().view(-1).view(torch.uint8).numpy()
    for begin in range(0, len(whole), _PIECE):
        file.write(whole[begin : begin + _PIECE].data)
    file.write(bytes(_rounded_up(len(whole), _LINE) - len(whole)))


def _read_head(file: BinaryIO) -> tuple[dict[str, Any], int]:
    """The head, and where the tensors begin."""
    prefix = file.read(_PREFIX.size)
    if len(prefix) < _PREFIX.size or not prefix.startswith(_MAGIC):
        raise BrokenFile("it does not begin like a file of packed weights")
    _, length, digest = _PREFIX.unpack(prefix)
    head = file.read(min(length, _MOST_HEAD_BYTES))
    if len(head) != length or hashlib.sha256(head).digest() != digest:
        raise BrokenFile("its header is damaged")
    document: dict[str, Any] = json.loads(head)
    return document, _data_begin(length)


def _data_begin(head_length: int) -> int:
    return _rounded_up(_PREFIX.size + head_length, _PAGE)


def _tensor(memory: torch.Tensor, begin: int, entry: Mapping[str, Any]) -> torch.Tensor:
    dtype: torch.dtype = getattr(torch, entry["dtype"])
    num_bytes = dtype.itemsize * torch.Size(entry["shape"]).numel()
    start = begin + entry["begin"]
    if start + num_bytes > len(memory):
        raise BrokenFile("a tensor ends after the file")
    return memory[start : start + num_bytes].view(dtype).view(entry["shape"])


def _sum_of(tensor: torch.Tensor) -> int:
    """Of the 64-bit words, and of the bytes that are left."""
    flat = tensor.detach().contiguous().view(-1).view(torch.uint8)
    whole = len(flat) // _WORD * _WORD
    words = int(flat[:whole].view(torch.int64).sum()) if whole else 0
    return (words + int.from_bytes(bytes(flat[whole:].tolist()), "little")) % (1 << 64)


def _rounded_up(num_bytes: int, step: int) -> int:
    return -(-num_bytes // step) * step
