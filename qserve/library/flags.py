"""Converts keyword arguments to the flags of a command, and runs commands in this process."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from qserve.errors import DoesNotFit, PortInUse, QserveError, UnusableResult, UsageError, WorkerFailed

__all__ = ["Value", "called", "flags_of", "names_in"]

Value = str | int | float | bool | Path | Sequence[str | Path] | None
_SHORTER = {"input_tokens": "input", "output_tokens": "output"}
_ERRORS: tuple[type[QserveError], ...] = (UsageError, DoesNotFit, PortInUse, WorkerFailed, UnusableResult)


def flags_of(options: Mapping[str, Value]) -> list[str]:
    """`max_model_len=4096` is `--max-model-len=4096`, `True` a flag, `False` its `--no-` form, None nothing."""
    words: list[str] = []
    for name, value in options.items():
        flag = _SHORTER.get(name, name).replace("_", "-")
        if value is None:
            continue
        if isinstance(value, bool):
            words.append(f"--{flag}" if value else f"--no-{flag}")
        elif isinstance(value, (str, int, float, Path)):
            words.append(f"--{flag}={value}")
        else:
            words += [f"--{flag}={one}" for one in value]
    return words


def called(*words: str) -> str:
    """What `qserve …` prints, in a process of its own.

    Raises the error that its exit status stands for (UsageError, DoesNotFit, PortInUse, WorkerFailed,
    UnusableResult), with its words.
    """
    done = subprocess.run([sys.executable, "-m", "qserve", *words], capture_output=True, text=True, check=False)
    if done.returncode:
        kinds = {kind.exit_status: kind for kind in _ERRORS}
        lines = (done.stderr.strip() or done.stdout.strip()).splitlines() or [f"exit status {done.returncode}"]
        first = next((index for index, line in enumerate(lines) if line.startswith("qserve: ")), len(lines) - 1)
        raise kinds.get(done.returncode, QserveError)("\n".join(lines[first:]).removeprefix("qserve: "))
    return done.stdout


def names_in(text: str | None) -> tuple[str, ...]:
    """Each name once, in the order of the text, without the spaces around it."""
    return tuple(dict.fromkeys(word.strip() for word in (text or "").split(",") if word.strip()))
