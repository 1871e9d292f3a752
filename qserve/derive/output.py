"""The folder of a new checkpoint: whole or not there, with what the source has beside its weights."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from qserve.detect.host import read_memory
from qserve.errors import DoesNotFit, UsageError
from qserve.units import GIB, MIB, format_bytes

__all__ = ["SHARD_BYTES", "carry", "check_disk", "check_memory", "check_new", "made_whole", "tokenizer_files"]

SHARD_BYTES = 4 * GIB
"""Of one file of weights at most, unless a single tensor is larger: it is held in RAM while it is written."""
_VOCABULARY = (
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "added_tokens.json",
    "special_tokens_map.json",
)
_TEMPLATES = "chat_template*"
_OTHERS = ("generation_config.json", "*processor_config.json", "modules.json", "LICENSE*", "NOTICE*")
# Cards, logs and indexes of a file system's own.
_SPARE_BYTES = 64 * MIB


def check_new(out: Path) -> None:
    """Raises UsageError where `out` holds something, or can't be made."""
    if out.is_dir() and not any(out.iterdir()):
        return
    if out.exists():
        raise UsageError(f"{out} exists already; name a new folder with --out, or remove that one")
    parent = next(one for one in out.absolute().parents if one.exists())
    if not os.access(parent, os.W_OK):
        raise UsageError(f"{out} can't be made: {parent} is not writable; name another folder with --out")


def check_disk(out: Path, num_bytes: int, what: str) -> None:
    """Raises UsageError where the disk of `out` has less room than `what` takes."""
    disk = next(one for one in (out.absolute(), *out.absolute().parents) if one.exists())
    free = shutil.disk_usage(disk).free
    if num_bytes + _SPARE_BYTES > free:
        raise UsageError(
            f"{what} takes {format_bytes(num_bytes)} on disk, and {disk} has {format_bytes(free)} free; name a folder "
            "on a larger disk"
        )


def check_memory(num_bytes: int, what: str, instead: str) -> None:
    """Raises DoesNotFit where less RAM than that can be taken here."""
    free = read_memory().available_bytes
    if num_bytes > free:
        raise DoesNotFit(
            f"{what} takes {format_bytes(num_bytes)} of RAM, and {format_bytes(free)} are free; {instead}",
            num_bytes - free,
        )


@contextlib.contextmanager
def made_whole(out: Path) -> Iterator[Path]:
    """A folder beside `out` to write into, which becomes `out` at the end of the block; whatever ends it earlier leaves
    nothing."""
    fresh = out.parent / f".{out.name}.partial-{os.getpid()}"
    fresh.mkdir(parents=True)
    try:
        yield fresh
        if out.is_dir():
            out.rmdir()
        fresh.rename(out)
    except BaseException:
        shutil.rmtree(fresh, ignore_errors=True)
        raise


def tokenizer_files(folder: Path) -> list[Path]:
    """Of the vocabulary, where `folder` has one, and its chat template."""
    has_vocabulary = any((folder / name).is_file() for name in _VOCABULARY[:3])
    names = _VOCABULARY if has_vocabulary else ()
    return [*(folder / name for name in names if (folder / name).is_file()), *sorted(folder.glob(_TEMPLATES))]


def carry(source: Path, into: Path) -> None:
    """Copies tokenizer, chat template, generation config, processors and licence."""
    others = (file for pattern in _OTHERS for file in sorted(source.glob(pattern)))
    for file in (*tokenizer_files(source), *others):
        if file.is_dir():
            shutil.copytree(file, into / file.name, dirs_exist_ok=True)
        else:
            shutil.copyfile(file, into / file.name)  # of a cache of the hub it is a link
