"""`Requirements`: what an environment has, by its requirement file in configs/environments/ or $QSERVE_CONFIGS."""

from __future__ import annotations

import difflib
import hashlib
import sys
from dataclasses import dataclass
from pathlib import Path

from qserve.core.facts import find_file, folders
from qserve.errors import UsageError
from qserve.units import parse_bytes

__all__ = ["Requirements", "known_names", "requirements_of"]

_BELOW = "environments"
_MARK = "#:"


@dataclass(frozen=True)
class Requirements:
    """A requirement file. Lines that begin with `#:` are for qserve: what it is for, and what it takes on disk.

    Attributes:
        name: of the environment.
        file: in pip's format.
        text: what it holds.
    """

    name: str
    file: Path
    text: str

    @property
    def purpose(self) -> str:
        """In a few words; empty where the file does not say."""
        return next((one for one in self._marks if not one.startswith("disk ")), "")

    def disk_bytes(self, accelerator: str) -> int:
        """With the builds for `accelerator` (cpu or cuda); 0 where the file does not say."""
        words = [one.split() for one in self._marks if one.startswith(f"disk {accelerator} ")]
        return parse_bytes(words[0][2]) if words else 0

    @property
    def num_packages(self) -> int:
        """That are named in it."""
        return sum(bool(line.partition("#")[0].strip()) for line in self.text.splitlines())

    def digest(self, accelerator: str) -> str:
        """Of all that decides what is installed: this text, the Python and the accelerator."""
        python = f"{sys.version_info.major}.{sys.version_info.minor}"
        return hashlib.sha256("\n".join((self.text, python, accelerator)).encode()).hexdigest()

    @property
    def _marks(self) -> list[str]:
        return [line[len(_MARK) :].strip() for line in self.text.splitlines() if line.startswith(_MARK)]


def known_names() -> list[str]:
    """Of all requirement files."""
    return sorted({file.stem for folder in folders() for file in (folder / _BELOW).glob("*.txt")})


def requirements_of(name: str) -> Requirements:
    """By the environment's name. Raises UsageError with those that there are."""
    known = known_names()
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1)
        hint = f" (did you mean {near[0]}?)" if near else ""
        raise UsageError(
            f"there is no environment {name[:80]!r}{hint}; there are {', '.join(known)}. Your own is a requirement "
            f"file: $QSERVE_CONFIGS/{_BELOW}/NAME.txt"
        )
    file = find_file(f"{_BELOW}/{name}.txt")
    return Requirements(name, file, file.read_text())
