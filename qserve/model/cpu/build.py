"""The C of this folder as a shared library: compiled for this processor at its first use, and kept in the user's cache.

A compiler takes ten seconds and is where Python's packages are built; without one, torch's own operations do the same
work more slowly. Nothing is linked: OpenMP's functions are found in the run time that torch has loaded, since two of
them in one process fight for the cores.
"""

from __future__ import annotations

import ctypes
import fcntl
import functools
import hashlib
import logging
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from qserve.detect.compiler import INSTALL_COMPILER, compiler_command

__all__ = ["cache_folder", "fingerprint", "is_ours", "library", "why_none"]

_log = logging.getLogger("qserve.worker")
_SOURCES = tuple(sorted(Path(__file__).parent.glob("*.c")))
_HEADERS = tuple(sorted(Path(__file__).parent.glob("*.h")))
# NaN must stay NaN, so no -ffast-math; without the two exceptions nothing with a square root becomes vectors.
_FLAGS = ("-O3", "-march=native", "-std=c11", "-fopenmp", "-fPIC", "-pthread", "-fno-math-errno", "-fno-trapping-math")
_TIMEOUT_S = 120


class _NotBuilt(Exception):
    """Why there is no library."""


@functools.cache
def _built() -> ctypes.CDLL | str:
    try:
        return ctypes.CDLL(str(_file()), mode=os.RTLD_NOW)  # at once: a missing function is found here, not in a row
    except (_NotBuilt, OSError, subprocess.SubprocessError) as error:
        return str(error)


def library() -> ctypes.CDLL | None:
    """Functions of the sources in this folder. torch is imported already.

    None where there is no compiler, or it fails; `why_none` says why.
    """
    built = _built()
    return None if isinstance(built, str) else built


def why_none() -> str | None:
    """Half a sentence; None where `library` is there."""
    built = _built()
    return built if isinstance(built, str) else None


def _file() -> Path:
    compiler = compiler_command()
    if compiler is None:
        raise _NotBuilt(f"there is no C compiler (cc); {INSTALL_COMPILER}")
    if shutil.which(compiler.split()[0]) is None:
        raise _NotBuilt(f"$CC names the C compiler {compiler}, which was not found")
    name = f"dense-{_fingerprint(compiler)}.so"
    for folder in (cache_folder(), None):
        try:
            if folder is not None:
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                if not is_ours(folder):
                    continue
                return _cached_or_compiled(compiler, folder, name)
            return _compiled(compiler, Path(tempfile.mkdtemp(prefix="qserve-kernels-")), name)
        except PermissionError:
            continue
    raise _NotBuilt("no folder can be written to")


def _cached_or_compiled(compiler: str, folder: Path, name: str) -> Path:
    """Compiled by one process while others wait: replicas that start together would each take ten seconds."""
    made, turn = folder / name, folder / f"{name}.lock"
    if _is_kept(made):
        return made
    with turn.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            return made if _is_kept(made) else _compiled(compiler, folder, name)
        finally:
            turn.unlink(missing_ok=True)  # who waits has it open, and who comes later finds what was made


def _is_kept(made: Path) -> bool:
    return made.is_file() and is_ours(made)


def _compiled(compiler: str, folder: Path, name: str) -> Path:
    """Written at once or not at all: others may look for it at the same time."""
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        made = Path(scratch) / name
        command = _command(compiler)
        objects = []
        for source in _SOURCES:
            objects.append(str(Path(scratch) / f"{source.stem}.o"))
            _run([*command, "-c", str(source), "-o", objects[-1]])
        _run([*compiler.split(), "-shared", *objects, "-o", str(made)])
        made.replace(folder / name)
    return folder / name


def _command(compiler: str) -> list[str]:
    """Flags of $CC come last, so that its -march holds."""
    words = compiler.split()
    first = next((place for place, word in enumerate(words) if word.startswith("-")), len(words))
    return [*words[:first], *_FLAGS, *words[first:]]


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    if done.returncode:
        _log.debug("%s\n%s", " ".join(command), done.stderr)
        first = next((line for line in done.stderr.splitlines() if "error" in line), "it printed no error")
        raise _NotBuilt(f"the C compiler {command[0]} failed: {first.strip()}")


def fingerprint() -> str | None:
    """Of the library: its sources, the compiler, and what the processor can do; None where there is no compiler."""
    compiler = compiler_command()
    return None if compiler is None else _fingerprint(compiler)


@functools.cache
def _fingerprint(compiler: str) -> str:
    """A library serves the sources, the compiler and the processor that it was made for."""
    about = hashlib.sha256(" ".join((compiler, *_FLAGS)).encode())
    for source in (*_HEADERS, *_SOURCES):
        about.update(source.read_bytes())
    about.update(subprocess.run([*compiler.split(), "--version"], capture_output=True, timeout=30, check=False).stdout)
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    about.update(next((line for line in lines if line.startswith(("flags", "Features"))), "").encode())
    return about.hexdigest()[:16]


def is_ours(path: Path) -> bool:
    """Whether nobody else may have put there what we are going to run, or to compute with."""
    status = path.stat()
    return status.st_uid == os.getuid() and not status.st_mode & 0o022


def cache_folder() -> Path:
    """The user's, of qserve."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "qserve"
