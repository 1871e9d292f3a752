"""The runs of methods.py, made once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

LIMIT_S = 280


class Runs:
    """What lies below one folder of methods.py."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.failures: dict[str, Any] = json.loads((folder / "failures.json").read_text())

    def events(self, name: str, kind: str) -> list[dict[str, Any]]:
        lines = (self.folder / name / "run" / "events.jsonl").read_text().splitlines()
        return [event for event in map(json.loads, lines) if event["event"] == kind]

    def losses(self, name: str) -> list[tuple[int, float]]:
        return [(one["step"], one["loss"]) for one in self.events(name, "logged") if "loss" in one]


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    folder = tmp_path_factory.mktemp("methods")
    command = [sys.executable, str(Path(__file__).with_name("methods.py")), str(folder)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False, env=environment)
    assert done.returncode == 0, done.stderr[-4000:]
    return Runs(folder)
