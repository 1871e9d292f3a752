"""Schemathesis as a test runs it: reads /openapi.json, tries what it allows and what it forbids."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

__all__ = ["fuzzed"]

_HOOKS = Path(__file__).with_name("fuzz_hooks.py")


def fuzzed(url: str, folder: Path, key: str = "", max_time_s: int = 15) -> None:
    """All checks of it, for `max_time_s` of fuzzing at most, or $QSERVE_FUZZ_S; its report is the failure."""
    max_time = os.environ.get("QSERVE_FUZZ_S", str(max_time_s))
    command = [
        str(Path(sys.executable).with_name("schemathesis")), "--no-color", "run", *(
            ("--header", f"Authorization: Bearer {key}") if key else ()
        ), "--phases", "examples,coverage,fuzzing", "--seed", "1", "--checks", "all", "--max-examples", "60",
        "--max-time", max_time, "--request-timeout", "30",
    ]  # fmt: skip
    environment = {**os.environ, "SCHEMATHESIS_HOOKS": str(_HOOKS)}
    done = subprocess.run(
        [*command, f"{url}/openapi.json"], cwd=folder, env=environment, capture_output=True, text=True, check=False,
        timeout=float(max_time) + 120,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
