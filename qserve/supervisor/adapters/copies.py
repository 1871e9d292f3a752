"""An adapter's files as they were when it was loaded: trainers write the next step to the same folder.

A worker that is started again, and a replica that comes later, read the copy.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from qserve.hub.adapter import PeftAdapter, adapter_files

__all__ = ["Copies", "LoadedAdapter"]

_INDEX = "index.json"


@dataclass(frozen=True)
class LoadedAdapter:
    """One that is loaded. `path` is where it came from, `copy` the name of the copied folder."""

    name: str
    group: str
    model: str
    path: str
    copy: str
    rank: int
    targets: tuple[str, ...]
    loaded_unix_s: int
    num_loads: int
    load_ms: float

    def document(self) -> dict[str, Any]:
        """As `wire/responses/adapters.py: Adapter` has it."""
        shown = {name: value for name, value in asdict(self).items() if name not in ("name", "group", "copy")}
        return {"id": self.name, "object": "adapter", **shown}


class Copies:
    """The copies of a service, in a folder that goes with it, also to a service that takes over from it."""

    def __init__(self, folder: Path) -> None:
        """Nothing is written before the first adapter."""
        self._folder = folder

    def at(self, copy: str) -> Path:
        """Where a copy lies."""
        return self._folder / copy

    def take(self, adapter: PeftAdapter) -> str:
        """A new copy of the adapter's files; its name. Raises OSError."""
        self._folder.mkdir(mode=0o700, exist_ok=True)
        made = Path(tempfile.mkdtemp(dir=self._folder, prefix="copy-"))
        try:
            for file in adapter_files(adapter.folder):
                shutil.copyfile(file, made / file.name)
        except BaseException:
            shutil.rmtree(made, ignore_errors=True)
            raise
        return made.name

    def drop(self, copy: str) -> None:
        """Nobody reads it any more."""
        shutil.rmtree(self.at(copy), ignore_errors=True)

    def keep(self, adapters: Sequence[LoadedAdapter]) -> None:
        """Write down what is loaded, at once or not at all."""
        part = self._folder / f"{_INDEX}.part"
        part.write_text(json.dumps([asdict(one) for one in adapters]))
        part.replace(self._folder / _INDEX)

    def kept(self) -> list[LoadedAdapter]:
        """What a service wrote down whose folder this was."""
        index = self._folder / _INDEX
        if not index.is_file():
            return []
        return [LoadedAdapter(**{**one, "targets": tuple(one["targets"])}) for one in json.loads(index.read_text())]
