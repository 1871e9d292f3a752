"""What is wrong with a checkpoint folder, in one sentence: from its headers before loading, from the error after."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from qserve.errors import BrokenCheckpoint, DoesNotFit, QserveError
from qserve.hub.folder import read_tensors
from qserve.model.stored.arguments import stored_config

__all__ = ["check_files", "explain"]

_FLOATS = ("F64", "F32", "F16", "BF16")


def check_files(folder: Path) -> None:
    """Headers, sizes and dtypes of the folder's files.

    Raises BrokenCheckpoint for a file that is missing, truncated, unreadable or of a dtype that means nothing here.
    """
    unreadable = next(_unreadable(folder), None)
    if unreadable is not None:
        raise BrokenCheckpoint(
            f"{unreadable} can't be read by this user (uid {os.geteuid()}): permission denied; "
            "change its owner or rights, for example: chmod -R u+rX"
        )
    tensors = read_tensors(folder)
    if tensors is None:
        raise BrokenCheckpoint(
            f"{folder} has no *.safetensors file to load. Other formats (.bin, .gguf) are not read; "
            "download the safetensors version, or give --load-format dummy for random weights"
        )
    if stored_config(folder) is not None:
        return
    odd = next(
        (tensor for tensor in tensors if tensor.dtype not in _FLOATS and tensor.role not in ("vision", "audio")), None
    )
    if odd is not None:
        raise BrokenCheckpoint(
            f"{folder} stores {odd.name} as {odd.dtype}, but its config.json names no quantization that explains these "
            f"numbers; weights are {', '.join(_FLOATS)}. Download it again, with its config.json"
        )


def _unreadable(folder: Path) -> Iterator[Path]:
    if not os.access(folder, os.R_OK | os.X_OK, effective_ids=True):
        yield folder
        return
    names = ("config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json")
    for file in [*(folder / name for name in names), *sorted(folder.glob("*.safetensors*"))]:
        if file.exists() and not os.access(file, os.R_OK, effective_ids=True):
            yield file


def explain(error: BaseException, folder: Path, what: str) -> QserveError:
    """The error of ours for one that loading `what` of `folder` raised."""
    if isinstance(error, QserveError):
        return error
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)) or "out of memory" in str(error).lower():
        return DoesNotFit(
            f"memory ran out while {what} of {folder} were loaded ({_first_line(error)}); take a smaller --quant, "
            "--offload cpu or disk, or end other programs that use the memory"
        )
    full = _cause(error, errno.ENOSPC)
    if full is not None:
        where = full.filename or "the offload folder"
        return DoesNotFit(
            f"the disk is full: {where} could not be written while {what} of {folder} were loaded; free space there, "
            "name another folder, or offload less"
        )
    denied = _cause(error, errno.EACCES) or _cause(error, errno.EPERM)
    if denied is not None:
        return BrokenCheckpoint(f"{denied.filename or folder}: permission denied; change its owner or rights")
    if isinstance(error, json.JSONDecodeError):
        return BrokenCheckpoint(f"{folder}: a JSON file is damaged ({error}); download it again")
    return BrokenCheckpoint(f"{what} in {folder} can't be loaded: {_first_line(error)}")


def _cause(error: BaseException | None, number: int) -> OSError | None:
    """The OSError of that number among the error and what led to it."""
    seen: Any = error
    while seen is not None:
        if isinstance(seen, OSError) and seen.errno == number:
            return seen
        seen = seen.__cause__ or seen.__context__
    return None


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0]
