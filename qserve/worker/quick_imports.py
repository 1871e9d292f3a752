"""Imports of torch, transformers and TRL without what they cost besides their own code.

transformers and TRL each ask importlib.metadata once which distribution every package came from; with some hundred
distributions that parses as many pages of metadata, half a second of a processor.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from qserve.worker.paused_collection import paused_collection

__all__ = ["packages_distributions", "quick_imports"]

_NAME = re.compile(rb"^Name:[ \t]*(\S+)", re.MULTILINE)
# Paths of Python files in a RECORD, by their first part.
_FIRST_PARTS = re.compile(r"^([^,/\"\n]+)(?:/[^,\n]*)?\.py,", re.MULTILINE)
_METADATA = {".dist-info": "METADATA", ".egg-info": "PKG-INFO"}
_FIRST_LINES_BYTES = 4096


@contextlib.contextmanager
def quick_imports() -> Iterator[None]:
    """Inside, `paused_collection`, and `packages_distributions` in the place of importlib.metadata's."""
    original = importlib.metadata.packages_distributions
    importlib.metadata.packages_distributions = packages_distributions
    try:
        with paused_collection():
            yield
    finally:
        importlib.metadata.packages_distributions = original


def packages_distributions() -> dict[str, list[str]]:
    """As importlib.metadata's: the distributions that each top-level package came from; without parsing metadata."""
    found: defaultdict[str, list[str]] = defaultdict(list)
    for folder in sys.path:
        with contextlib.suppress(OSError), os.scandir(folder or ".") as entries:
            for entry in entries:
                metadata = _METADATA.get(entry.name[-10:] if entry.name.endswith(".dist-info") else entry.name[-9:])
                if metadata is not None and (name := _name_in(Path(entry.path, metadata))) is not None:
                    for package in _packages_of(Path(entry.path)):
                        found[package].append(name)
    return dict(found)


def _name_in(metadata: Path) -> str | None:
    try:
        with metadata.open("rb") as file:
            match = _NAME.search(file.read(_FIRST_LINES_BYTES))
    except OSError:
        return None
    return match[1].decode() if match else None


def _packages_of(distribution: Path) -> list[str]:
    """What it says, or else what its files say."""
    if told := _text_of(distribution / "top_level.txt").split():
        return told
    return sorted(set(_FIRST_PARTS.findall(_text_of(distribution / "RECORD"))))


def _text_of(file: Path) -> str:
    try:
        return file.read_text(errors="replace")
    except OSError:
        return ""
