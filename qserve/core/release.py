"""Releases of engines: what stands behind --engine-version, as numbers to compare."""

from __future__ import annotations

import re
from functools import lru_cache

from qserve.errors import UsageError

__all__ = ["Release", "parse_release", "shown_release"]

Release = tuple[int, ...]
"""(0, 17) or (0, 16, 0): how many numbers one names is its own affair."""


@lru_cache(maxsize=256)
def parse_release(text: str) -> tuple[int, int, int]:
    """(major, minor, patch) of '0.19.0', '0.28.1rc1', '4.46'. Raises UsageError."""
    match = re.match(r"v?(\d+)\.(\d+)(?:\.(\d+))?", text)
    if match is None:
        raise UsageError(f"--engine-version {text!r} is not a release; write for example 0.32.0")
    return int(match[1]), int(match[2]), int(match[3] or 0)


def shown_release(release: Release) -> str:
    """'0.17' of (0, 17)."""
    return ".".join(map(str, release))
