"""The C compiler of this machine, if there is one: what the CPU's kernels are built with, once."""

from __future__ import annotations

import os
import shutil

__all__ = ["INSTALL_COMPILER", "compiler_command"]

INSTALL_COMPILER = "Debian, Ubuntu: apt install gcc"


def compiler_command() -> str | None:
    """$CC, or the first compiler that is found; None where there is none."""
    return os.environ.get("CC") or next((name for name in ("cc", "gcc", "clang") if shutil.which(name)), None)
