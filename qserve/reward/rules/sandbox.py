"""Runs Python code of a model in a sandbox: bubblewrap, read-only, without network.

It sees the interpreter's own files, read-only; no other file, process or network of the machine. There is no second
best: without bubblewrap, or where the kernel gives it no namespaces, nothing is run.
"""

from __future__ import annotations

import secrets
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

from qserve.errors import UsageError

__all__ = ["passes", "require_sandbox"]

_SYSTEM = ("/usr", "/bin", "/lib", "/lib64", "/sbin")
_TRIAL_S = 10.0
# Limits that hold for the program and all that it starts; they can't be raised again from inside.
_RUNNER = """
import resource, sys
for kind, most in ((resource.RLIMIT_AS, {memory_bytes}), (resource.RLIMIT_CPU, {cpu_s}), (resource.RLIMIT_NPROC, 64),
                   (resource.RLIMIT_CORE, 0)):
    resource.setrlimit(kind, (most, most))
source = sys.stdin.read()
exec(compile(source, "response", "exec"), {{"__name__": "__main__"}})
"""


def passes(program: str, tests: str, *, timeout_s: float, memory_bytes: int) -> bool:
    """Whether `program` and then `tests` run to their end without an error, within the limits.

    A program that ends before its tests have not passed them: a word that it can't know is printed after them.
    """
    word = secrets.token_hex(16)
    source = f"{program}\n\n{tests}\n\nprint({word!r})\n"
    runner = _RUNNER.format(memory_bytes=memory_bytes, cpu_s=int(timeout_s) + 1)
    command = [*_sandbox(), _python(), "-I", "-S", "-c", runner]
    try:
        done = subprocess.run(
            command, input=source.encode(), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=timeout_s,
            check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0 and done.stdout.rstrip().endswith(word.encode())


def require_sandbox() -> None:
    """Raises UsageError where nothing can be run in one, with what is missing."""
    why = _why_not()
    if why:
        raise UsageError(f"the rule code runs what a model wrote, in a sandbox only: {why}")


@cache
def _why_not() -> str:
    if shutil.which("bwrap") is None:
        return "bubblewrap is not installed (apt install bubblewrap)"
    try:
        done = subprocess.run(
            [*_sandbox(), _python(), "-I", "-S", "-c", ""], capture_output=True, timeout=_TRIAL_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"bubblewrap does not start ({error})"
    said = done.stderr.decode(errors="replace").strip()[-200:]
    return "" if done.returncode == 0 else f"bubblewrap can't make one on this machine ({said})"


def _sandbox() -> list[str]:
    seen = [folder for folder in _SYSTEM if Path(folder).exists()]
    prefix = str(Path(sys.base_prefix).resolve())
    if not any(Path(prefix).is_relative_to(folder) for folder in seen):
        seen.append(prefix)
    files = [word for folder in seen for word in ("--ro-bind", folder, folder)]
    return [
        "bwrap", "--unshare-all", "--die-with-parent", "--new-session", "--clearenv", "--cap-drop", "ALL", *files,
        "--dev-bind", "/dev/null", "/dev/null", "--remount-ro", "/", "--chdir", "/",
    ]  # fmt: skip


def _python() -> str:
    """The interpreter itself: a virtual environment's is a link to it, and its packages are nobody's business here."""
    return str(Path(sys.executable).resolve())
