"""Programs and tests for the rule `code`, as text: `=== name`, the program, then parts that begin with `--- part`."""

from __future__ import annotations

import shutil
import subprocess
from functools import cache
from pathlib import Path

import pytest

from qserve.reward.rules import sandbox

__all__ = ["needs_sandbox", "read_programs"]


def needs_sandbox() -> None:
    """Skips where bubblewrap starts nothing. Where it does, a sandbox that is not trusted is a fault of qserve's."""
    if why := sandbox._why_not():
        (pytest.fail if _starts() else pytest.skip)(why)


@cache
def _starts() -> bool:
    command = ["bwrap", "--unshare-all", "--ro-bind", "/", "/", "true"]
    return shutil.which("bwrap") is not None and subprocess.run(command, check=False).returncode == 0


def read_programs(name: str) -> dict[str, dict[str, str]]:
    """Of each name its parts; the program's is called `program`."""
    text = "\n" + Path(__file__).with_name(f"{name}.txt").read_text()
    return {
        title: {part: text for part, _, text in (one.partition("\n") for one in f"program\n{rest}".split("\n--- "))}
        for title, _, rest in (one.partition("\n") for one in text.split("\n=== ")[1:])
    }
