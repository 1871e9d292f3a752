"""Checks what vLLM needs of the system: a toolchain to compile kernels for a card, a library for its CPU build.

Triton builds a small launcher in C against Python.h before its first kernel runs. Source: triton runtime/build.py.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path

__all__ = ["lacking_libraries", "lacking_toolchain"]

# Libraries of the system that vLLM's CPU build is linked to, with the package of Debian and Ubuntu that has each.
# Without one its kernels are left out with a warning, and the first that is called is an AttributeError.
_CPU_LIBRARIES = {"libnuma.so.1": "libnuma1"}
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


def lacking_libraries(needed: Mapping[str, str] = _CPU_LIBRARIES) -> tuple[str, ...]:
    """Libraries of vLLM's CPU build that the loader does not find, each with the command that installs it."""
    return tuple(
        f"{name} (Debian, Ubuntu: apt install {package})" for name, package in needed.items() if not _is_found(name)
    )


def _is_found(library: str) -> bool:
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True


def _has_compiler(environ: Mapping[str, str]) -> bool:
    named = environ.get("CC", "").split()
    path = environ.get("PATH", os.defpath)
    return any(shutil.which(name, path=path) for name in (named[:1] or _COMPILERS))
