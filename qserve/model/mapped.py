"""Keeps a checkpoint's files out of the process's resident memory while they are read.

safetensors maps a file. Each page that a cast, a quantization or a packing reads stays resident beside its result for
as long as any tensor of the file lives, so that the file would be in memory twice. Pages are given back as loading goes
on: they stay in the kernel's page cache, which belongs to nobody.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers.utils import logging as transformers_logging

__all__ = ["MappedFiles", "releasing", "return_large_blocks", "trim_heap"]

_PAGE = mmap.PAGESIZE
_INTERVAL_S = 0.1
_PIECE = 1 << 21
_M_MMAP_THRESHOLD = -3  # malloc.h
_LARGE_BLOCK = 4 << 20
_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None


@dataclass(frozen=True)
class MappedFiles:
    """Where in memory the safetensors files of a folder lie: (begin, end) addresses. Empty where that can't be told."""

    ranges: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, folder: Path) -> MappedFiles:
        """The mappings as they are now. A file in a hub cache is a link; the kernel names what it links to."""
        if _LIBC is None:
            return cls(())
        names = {str(file.resolve()) for file in folder.glob("*.safetensors")}
        entries = (line.split(None, 5) for line in Path("/proc/self/maps").read_text().splitlines())
        edges = (entry[0].split("-") for entry in entries if len(entry) == 6 and entry[5] in names)
        return cls(tuple((int(begin, 16), int(end, 16)) for begin, end in edges))

    def holds(self, tensor: torch.Tensor) -> bool:
        """Whether `tensor` lies in one of the files. Nothing writes there, so its pages can be had again."""
        return tensor.device.type == "cpu" and any(begin <= tensor.data_ptr() < end for begin, end in self.ranges)

    def release(self, tensor: torch.Tensor) -> None:
        """Give back the whole pages below a tensor that was read; one that lies elsewhere is left alone."""
        if self.holds(tensor):
            _give_back(tensor.data_ptr(), tensor.data_ptr() + tensor.nbytes)

    def release_all(self) -> None:
        """Give back every page. Only while the files are sure to be mapped still."""
        for begin, end in self.ranges:
            _give_back(begin, end)

    def detach(self, model: nn.Module) -> None:
        """Copy what still lies in a file to memory of its own, so that nothing keeps the file mapped."""
        for tensor in [*model.parameters(), *model.buffers()]:
            if self.holds(tensor):
                tensor.data = self._own_copy(tensor.data)

    def _own_copy(self, held: torch.Tensor) -> torch.Tensor:
        """In pieces: an embedding is half a gigabyte, and must not be there twice either."""
        copy = torch.empty_like(held, memory_format=torch.contiguous_format)
        sources, targets = held.flatten(), copy.view(-1)
        for begin in range(0, held.numel(), _PIECE):
            piece = sources[begin : begin + _PIECE]
            targets[begin : begin + _PIECE] = piece
            self.release(piece)
        return copy


@contextlib.contextmanager
def releasing(folder: Path, on_progress: Callable[[float], None]) -> Iterator[None]:
    """While transformers loads from `folder`: read pages are given back, and `on_progress` hears the share loaded.

    Runs by the library's progress bar, inside its loop over the weights: it closes the files after that loop, so there
    the mappings are sure to live.
    """

    def hook(factory: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if kwargs.get("desc") != "Loading weights" or not args:
            return factory(*args, **kwargs)
        return _watched(args[0], folder, on_progress)

    previous = transformers_logging.set_tqdm_hook(hook)
    try:
        yield
    finally:
        transformers_logging.set_tqdm_hook(previous)


def _watched(items: Iterable[Any], folder: Path, on_progress: Callable[[float], None]) -> Iterator[Any]:
    entries, files = list(items), MappedFiles.of(folder)
    last_s = time.monotonic()
    for index, entry in enumerate(entries):
        if time.monotonic() - last_s > _INTERVAL_S:
            files.release_all()
            trim_heap()
            on_progress(index / len(entries))
            last_s = time.monotonic()
        yield entry
    files.release_all()


def trim_heap() -> None:
    """Have the C library give back what was freed: quantizing leaves holes as large as the weights themselves."""
    if _LIBC is not None and hasattr(_LIBC, "malloc_trim"):
        _LIBC.malloc_trim(0)


def return_large_blocks() -> None:
    """From now on a block of some MiB goes back to the system when it is freed (mallopt, until the process ends).

    The C library keeps freed blocks of up to 32 MiB for the next request. LLM.int8 asks for many of different sizes at
    every layer, and what is kept then comes to several times what is used: 798 against 364 MiB at 1024 tokens of a
    Qwen3-0.6B shape. For other models the keeping is right: it saves the price of fresh pages.
    """
    if _LIBC is not None and hasattr(_LIBC, "mallopt"):
        _LIBC.mallopt(_M_MMAP_THRESHOLD, _LARGE_BLOCK)


def _give_back(begin: int, end: int) -> None:
    first, last = -(-begin // _PAGE) * _PAGE, end // _PAGE * _PAGE
    if _LIBC is not None and last > first:
        _LIBC.madvise(ctypes.c_void_p(first), ctypes.c_size_t(last - first), mmap.MADV_DONTNEED)
