"""A copy of the package in which a test writes what an engineer would write, and runs the result."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.unit.house.sources import PACKAGE

__all__ = ["CopiedPackage"]


class CopiedPackage:
    """`qserve/` and `docs/api.md` below a folder. `touched` are the files that were added or changed there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.touched: set[str] = set()
        shutil.copytree(PACKAGE, folder / "qserve", ignore=shutil.ignore_patterns("__pycache__"))
        (folder / "configs").symlink_to(PACKAGE.parent / "configs")
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
        environment = {**os.environ, "PYTHONPATH": str(self.folder)}
        words = [sys.executable, "-c", code]
        done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=self.folder, env=environment)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)
