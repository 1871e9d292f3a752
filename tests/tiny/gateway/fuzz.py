"""Schemathesis as a test runs it: reads /openapi.json, tries what it allows and what it forbids."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

__all__ = ["fuzzed"]

_HOOKS = Path(__file__).with_name("fuzz_hooks.py")


def fuzzed(url: str, folder: Path, max_time_s: int = 20, path: str | None = None) -> None:
    """A few requests of every operation, or of those at `path`, all checks of them; its report is the failure.

    With $QSERVE_FUZZ_S all phases for so many seconds.
    """
    told = os.environ.get("QSERVE_FUZZ_S")
    max_time = told or str(max_time_s)
    phases, num_examples = ("examples,coverage,fuzzing", "60") if told else ("fuzzing", "3")
    command = [
        str(Path(sys.executable).with_name("schemathesis")),
        "--no-color",
        "run",
        "--phases",
        phases,
        "--max-examples",
        num_examples,
        "--max-time",
        max_time,
        "--seed",
        "1",
        "--checks",
        "all",
        "--request-timeout",
        "30",
        *(["--include-path", path] if path is not None else []),
    ]
    environment = {**os.environ, "SCHEMATHESIS_HOOKS": str(_HOOKS)}
    done = subprocess.run(
        [*command, f"{url}/openapi.json"],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=float(max_time) + 120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
