"""A parent for foreign processes, which ends them when qserve ends:  python -I -S guard.py COMMAND ARGUMENT…

Our own workers ask the kernel to end them with their parent (`qserve.worker.process`). A foreign server does not, and
neither do the processes that it starts. The guard stands between: whatever descends from it falls back to it when its
own parent dies (PR_SET_CHILD_SUBREAPER), and when the supervisor goes, or the server ends, all of it is killed. That
the supervisor goes the kernel tells by the lifeline (`qserve.worker.process.end_with_service`), or where there is none
by PR_SET_PDEATHSIG.

- the supervisor ends, even by SIGKILL: everything is killed, and the guard ends;
- the server ends: what it left behind is killed, and the guard ends the way the server did;
- SIGTERM, SIGINT: handed on to the server, which may finish in its own way;
- the guard is killed: the server goes with it, and the supervisor kills the process group.

Standard library only and run by its path, so that it starts in some ten milliseconds and holds few megabytes.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_LIFELINE = "QSERVE_LIFELINE"
# The kernel's word that the supervisor is gone. Not SIGTERM: people send that one, and it means something else.
_PARENT_GONE = signal.SIGUSR1
# Python's resource tracker unlinks shared memory (vLLM's queues, hundreds of MB) once all who used it are gone.
_TRACKER = b"multiprocessing.resource_tracker"
_TIDYING_S = 5.0

_prctl = ctypes.CDLL(None, use_errno=True).prctl


def main() -> None:
    """Runs the command given on the command line and outlives everything that comes of it."""
    supervisor = os.getppid()
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    signal.signal(_PARENT_GONE, lambda *_: _end_all(1))
    if os.environ.pop(_LIFELINE, None) is not None:
        is_gone = _follow_lifeline()
    else:
        _prctl(_PR_SET_PDEATHSIG, _PARENT_GONE)
        is_gone = os.getppid() != supervisor
    if is_gone:  # it died before the kernel was told
        sys.exit(1)
    server = subprocess.Popen(
        sys.argv[1:], stdin=subprocess.DEVNULL, preexec_fn=lambda: _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    )
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda got, _: _hand_on(server.pid, got))
    _end_all(_end_of(server))


def _follow_lifeline() -> bool:
    """Have the kernel signal this process when the pipe at standard input is closed; whether it is already."""
    fcntl.fcntl(0, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(0, fcntl.F_SETSIG, _PARENT_GONE)
    fcntl.fcntl(0, fcntl.F_SETFL, fcntl.fcntl(0, fcntl.F_GETFL) | os.O_ASYNC)
    return bool(select.select([0], [], [], 0)[0])


def _end_of(server: subprocess.Popen[bytes]) -> int:
    """Buries whoever dies until it is the server: its exit status, or minus the signal."""
    while True:
        pid, status = os.wait()
        if pid == server.pid:
            server.returncode = os.waitstatus_to_exitcode(status)
            return server.returncode


def _hand_on(pid: int, number: int) -> None:
    # Popen.send_signal would bury the server behind our back.
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def _end_all(status: int) -> None:
    """Kills all descendants, generation by generation: orphans come to us, so in the end none is left.

    Those that tidy up after the others get `_TIDYING_S` to do it.
    """
    patient_until = time.monotonic() + _TIDYING_S
    while children := _children():
        tidying = [child for child in children if time.monotonic() < patient_until and _TRACKER in _command(child)]
        doomed = set(children).difference(tidying)
        for child in doomed:
            os.kill(child, signal.SIGKILL)
        for child in doomed:
            os.waitpid(child, 0)
        if not doomed:
            time.sleep(0.01)
    if status < 0:  # die as the server did, so that whoever waits for us learns how
        if -status != signal.SIGKILL:
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    os._exit(max(status, 0))


def _children() -> list[int]:
    """Also those that have ended and wait to be buried."""
    own = os.getpid()
    running = (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit())
    return [pid for pid in running if _parent(pid) == own]


def _command(pid: int) -> bytes:
    """Empty for one that has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""


def _parent(pid: int) -> int:
    try:
        # The name in parentheses may hold anything, spaces and parentheses too.
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except (FileNotFoundError, ProcessLookupError):
        return 0


if __name__ == "__main__":
    main()
