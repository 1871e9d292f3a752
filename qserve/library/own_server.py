"""A temporary server for one command: `qserve up` in a child process, on a free port, with a key of its own."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from qserve.errors import DoesNotFit, UsageError, WorkerFailed

__all__ = ["STARTED_BY", "OwnServer", "own_server", "rounding_arguments", "up_arguments"]

STARTED_BY = "QSERVE_STARTED_BY"
"""Environment variable that names the command for which a temporary server runs."""
_POLL_S = 0.1
StartedBy = Literal["bench", "compare", "eval", "library", "run"]
_FAILURES = {kind.exit_status: kind for kind in (UsageError, DoesNotFit)}


@dataclass(frozen=True)
class OwnServer:
    """A running server: its address, its API key, and the seconds it took to start."""

    url: str
    api_key: str
    start_s: float


def up_arguments(text: str) -> list[str]:
    """--up-args split as a shell does. Raises UsageError for an unclosed quotation."""
    try:
        return shlex.split(text)
    except ValueError as error:
        raise UsageError(f"--up-args {text!r} can't be read: {error}") from None


def rounding_arguments(cpu_activations: str) -> list[str]:
    """--cpu-activations for `qserve up`; empty if the plan decides."""
    return [] if cpu_activations == "auto" else ["--cpu-activations", cpu_activations]


@contextlib.contextmanager
def own_server(
    arguments: Sequence[str],
    log: Path,
    state_dir: Path | None,
    started_by: StartedBy,
    follow: Callable[[str], None] = lambda line: None,
) -> Iterator[OwnServer]:
    """Runs `qserve up` with `arguments` until the block ends; its output goes to `log`, its run to `state_dir`.

    It also stops when this process ends in any way. `follow` is called with the log's last line until it is ready.
    Raises UsageError, DoesNotFit or WorkerFailed, by its exit status, with the last lines of its log.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    key, state = secrets.token_urlsafe(24), [] if state_dir is None else ["--state-dir", str(state_dir)]
    with tempfile.TemporaryDirectory(prefix="qserve-own-") as private, log.open("w") as output:
        ready = Path(private) / "ready.json"
        began = time.monotonic()
        process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "qserve.cli.child",
                str(os.getpid()),
                "up",
                *arguments,
                "--port",
                "0",
                "--ready-file",
                str(ready),
                *state,
            ],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, "QSERVE_API_KEY": key, STARTED_BY: started_by},
            start_new_session=True,  # Ctrl-C must not reach the server: it answers until the evaluation has stopped
        )
        try:
            while not ready.is_file():
                if process.poll() is not None:
                    failure = _FAILURES.get(process.returncode, WorkerFailed)
                    raise failure(f"`qserve up {shlex.join(arguments)}` did not start: {_last_lines(log)}")
                follow(next(reversed(log.read_text(errors="replace").splitlines()), ""))
                time.sleep(_POLL_S)
            yield OwnServer(str(json.loads(ready.read_text())["url"]), key, time.monotonic() - began)
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait()


def _last_lines(log: Path) -> str:
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    start = next((index for index, line in enumerate(lines) if line.startswith("qserve: ")), max(0, len(lines) - 1))
    return "\n".join(lines[start:]).removeprefix("qserve: ") or f"it printed nothing ({log})"
