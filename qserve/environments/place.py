"""`Environment`: where an environment is, what it was made from, and who uses it."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from qserve.environments.requirements import Requirements

__all__ = ["Environment", "State", "made_names"]

State = Literal["ready", "outdated", "not made"]
_RECORD = "qserve-environment.json"


@dataclass(frozen=True)
class Environment:
    """One below `root`, the folder of all. `requirements`: None of one whose file is gone."""

    name: str
    root: Path
    requirements: Requirements | None
    accelerator: str

    @property
    def folder(self) -> Path:
        return self.root / self.name

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    @property
    def log(self) -> Path:
        """What pip said when it was made last."""
        return self.root / f"{self.name}.log"

    def state(self) -> State:
        """outdated: its requirement file, Python or the accelerator is another than when it was made."""
        if not self.folder.is_dir():
            return "not made"
        is_current = self.requirements is not None and self.record.get("digest") == self.requirements.digest(
            self.accelerator
        )
        return "ready" if is_current and self.python.exists() else "outdated"

    @property
    def record(self) -> dict[str, Any]:
        """What was written down when it was made; empty where it can't be read."""
        try:
            found = json.loads((self.folder / _RECORD).read_text())
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    def write_record(self, folder: Path) -> None:
        """Into `folder`, which becomes the environment's."""
        assert self.requirements is not None, "made from them"
        digest = self.requirements.digest(self.accelerator)
        (folder / _RECORD).write_text(json.dumps({"digest": digest, "accelerator": self.accelerator}) + "\n")

    @property
    def num_bytes(self) -> int:
        """On disk; 0 of one that is not made."""
        return sum((Path(folder) / name).lstat().st_size for folder, _, names in os.walk(self.folder) for name in names)

    @contextlib.contextmanager
    def used(self) -> Iterator[None]:
        """Nobody removes it or makes it anew until the block ends."""
        with self._lock(fcntl.LOCK_SH):
            yield

    @contextlib.contextmanager
    def changed(self, waiting: Callable[[], None]) -> Iterator[None]:
        """Nobody else uses or changes it in the block; `waiting` is called where somebody does."""
        with self._lock(fcntl.LOCK_EX, waiting):
            yield

    @contextlib.contextmanager
    def _lock(self, kind: int, waiting: Callable[[], None] = lambda: None) -> Iterator[None]:
        self.root.mkdir(parents=True, exist_ok=True)
        with (self.root / f"{self.name}.lock").open("w") as file:
            try:
                fcntl.flock(file, kind | fcntl.LOCK_NB)
            except BlockingIOError:
                waiting()
                fcntl.flock(file, kind)
            yield


def made_names(root: Path) -> list[str]:
    """Of the environments that lie in `root`, whole or not."""
    if not root.is_dir():
        return []
    return sorted(one.name for one in root.iterdir() if one.is_dir() and not one.name.startswith("."))
