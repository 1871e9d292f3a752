"""The guard leaves nothing behind, whoever dies first, and hands on how the server ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO

import psutil
import pytest

import qserve.worker.guard
from qserve.worker.process import LIFELINE
from tests.processes import is_running

GUARD = (sys.executable, "-I", "-S", qserve.worker.guard.__file__)
# A server with a child that has left its process group and has a child of its own. They print their pids.
LEAF = "import os, time; print(os.getpid(), flush=True); time.sleep(600)"
BRANCH = f"""
import os, subprocess, sys, time
subprocess.Popen([sys.executable, "-c", {LEAF!r}])
print(os.getpid(), flush=True)
time.sleep(600)
"""
SERVER = f"""
import os, signal, subprocess, sys, time
print(os.getpid(), flush=True)
subprocess.Popen([sys.executable, "-c", {BRANCH!r}], start_new_session=True)
exec(sys.argv[1])
"""
# The server does something once its family is complete.
COMPLETE = "time.sleep(1.5); "


def family(output: IO[str], num: int = 3) -> list[int]:
    """The pids that `num` processes print."""
    return [int(output.readline()) for _ in range(num)]


def guarded(then: str) -> tuple[subprocess.Popen[str], list[int]]:
    command = [*GUARD, sys.executable, "-c", SERVER, then]
    guard = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert guard.stdout is not None
    with guard.stdout:
        return guard, family(guard.stdout)


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def gone(pids: list[int]) -> bool:
    return not any(is_running(pid) for pid in pids)


@pytest.mark.parametrize(("then", "status"), [("sys.exit(7)", 7), ("os.abort()", -6), ("os.kill(os.getpid(), 9)", -9)])
def test_it_ends_as_the_server_did_and_takes_what_that_left(then: str, status: int) -> None:
    guard, pids = guarded(COMPLETE + then)
    assert guard.wait(60) == status
    assert gone(pids)


def test_sigterm_reaches_the_server() -> None:
    then = "signal.signal(15, lambda *_: sys.exit(3)); print(0, flush=True); time.sleep(600)"
    command = [*GUARD, sys.executable, "-c", SERVER, then]
    guard = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert guard.stdout is not None
    with guard.stdout:
        pids = family(guard.stdout, 4)
    guard.terminate()
    assert guard.wait(60) == 3
    assert gone([pid for pid in pids if pid])


def test_a_supervisor_that_is_killed_takes_everything_with_it(tmp_path: Path) -> None:
    pids_file = tmp_path / "pids"
    supervisor = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import subprocess, sys, time; g = subprocess.Popen(sys.argv[2:], stdout=open(sys.argv[1], 'w'), "
            "start_new_session=True); time.sleep(600)",
            str(pids_file),
            *GUARD,
            sys.executable,
            "-c",
            SERVER,
            "time.sleep(600)",
        ]
    )
    until(lambda: pids_file.exists() and len(pids_file.read_text().split()) == 3)
    pids = [int(word) for word in pids_file.read_text().split()]
    guard = psutil.Process(supervisor.pid).children()[0]
    os.kill(supervisor.pid, signal.SIGKILL)
    supervisor.wait(60)
    until(lambda: gone([*pids, guard.pid]))


def test_shared_memory_of_a_killed_server_is_given_back() -> None:
    """Python's resource tracker does that, if it lives a moment longer than those who used the memory."""
    then = (
        "from multiprocessing.shared_memory import SharedMemory; block = SharedMemory(create=True, size=4096); "
        "print(0, block.name, flush=True); time.sleep(0.5); os.kill(os.getpid(), 9)"
    )
    command = [*GUARD, sys.executable, "-c", SERVER, then]
    guard = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert guard.stdout is not None
    with guard.stdout:
        lines = [guard.stdout.readline() for _ in range(4)]
    (name,) = (line.split()[1] for line in lines if " " in line.strip())
    assert guard.wait(60) == -9
    deadline = time.monotonic() + 60  # the tracker has been told; how soon it runs is the machine's
    while Path("/dev/shm", name).exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert gone([int(line.split()[0]) for line in lines if line.split()[0] != "0"])


def test_it_ends_everything_when_its_lifeline_is_closed(tmp_path: Path) -> None:
    """Its parent, which lives on, is not the service that holds it: another one has taken over."""
    command = [*GUARD, sys.executable, "-c", SERVER, "time.sleep(600)"]
    environment = {**os.environ, LIFELINE: "1"}
    guard = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True, env=environment
    )
    assert guard.stdout is not None and guard.stdin is not None
    with guard.stdout:
        pids = family(guard.stdout)
        assert not gone(pids)
        guard.stdin.close()
        assert guard.wait(60) == 1
        assert gone(pids)
