"""A copy of the package in which a test writes what an engineer would write, and runs the result."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.house.sources import PACKAGE

__all__ = ["CopiedPackage"]


class CopiedPackage:
    """`qserve/`, `configs/` and `docs/api.md` below a folder. `touched` are the files that were added or changed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.touched: set[str] = set()
        for name in ("qserve", "configs"):
            shutil.copytree(PACKAGE.parent / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        (folder / "docs").mkdir()
        shutil.copy(PACKAGE.parent / "docs" / "api.md", folder / "docs")

    def add(self, name: str, text: str) -> None:
        """A new file."""
        file = self.folder / name
        assert not file.exists()
        file.write_text(text)
        self.touched.add(name)

    def insert(self, name: str, before: str, text: str) -> None:
        """`text` directly before the one place where `before` stands."""
        file = self.folder / name
        whole = file.read_text()
        assert whole.count(before) == 1, f"{name} has {before!r} {whole.count(before)} times"
        file.write_text(whole.replace(before, text + before))
        self.touched.add(name)

    def run(self, code: str) -> Any:
        """What `code` prints as JSON in a process that imports this copy."""
        return self._read("-c", code)

    def plan(self, *arguments: str) -> dict[str, Any]:
        """What `qserve plan --json` of this copy says, where no hub can be asked."""
        found: dict[str, Any] = self._read("-m", "qserve", "plan", "--json", *arguments)
        return found

    def _read(self, *arguments: str) -> Any:
        environment = {**os.environ, "PYTHONPATH": str(self.folder), "HF_HUB_OFFLINE": "1"}
        words = [sys.executable, *arguments]
        done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=self.folder, env=environment)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)
