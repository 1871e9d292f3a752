"""Checks the toolchain with which vLLM compiles kernels at start: a C compiler and Python's headers.

Triton builds a small launcher in C against Python.h before its first kernel runs. Source: triton runtime/build.py.
"""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path

__all__ = ["lacking_toolchain"]

# Those that Triton looks for, in its order, after $CC.
_COMPILERS = ("gcc", "clang", "cc")


def lacking_toolchain(environ: Mapping[str, str] = os.environ, include: Path | None = None) -> tuple[str, ...]:
    """What is not here, each with the command that installs it; empty where Triton can compile."""
    lacking = []
    if not _has_compiler(environ):
        lacking.append("a C compiler (Debian, Ubuntu: apt install gcc)")
    folder = include or Path(sysconfig.get_path("include"))
    if not (folder / "Python.h").is_file():
        name = f"python{sys.version_info.major}.{sys.version_info.minor}-dev"
        lacking.append(f"Python's headers, {folder}/Python.h (Debian, Ubuntu: apt install {name})")
    return tuple(lacking)


def _has_compiler(environ: Mapping[str, str]) -> bool:
    named = environ.get("CC", "").split()
    path = environ.get("PATH", os.defpath)
    return any(shutil.which(name, path=path) for name in (named[:1] or _COMPILERS))
