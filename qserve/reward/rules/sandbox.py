"""Runs Python code of a model in a sandbox: bubblewrap, read-only, without network, one process each.

The program and its tests run in two of them, so that nothing of the tests is where the program is (see `inside`). A
sandbox sees the interpreter's own files, read-only; no other file, process or network of the machine. There is no
second best: without bubblewrap, or where the kernel does not hold a part of it, nothing is run.
"""

from __future__ import annotations

import os
import select
import time
from functools import cache

from qserve.errors import UsageError
from qserve.reward.rules.bubblewrap import NoSandbox, Sandbox, sandbox_of
from qserve.reward.rules.inside.tester import PASSED

__all__ = ["passes", "require_sandbox"]

_TRIAL_S = 10.0
_TRIAL_BYTES = 256 << 20
_MOST_THREADS = 64


def passes(program: str, tests: str, *, timeout_s: float, memory_bytes: int) -> bool:
    """Whether `program` runs to its end, and then `tests` against it, without an error and within the limits.

    Each of the two has `memory_bytes`. A program that ends before its tests has not passed them.
    """
    until_s = time.monotonic() + timeout_s
    sandbox, limits = _sandbox(), _limits(timeout_s, memory_bytes)
    asked, asking = os.pipe()
    answered, answering = os.pipe()
    verdict, saying = os.pipe()
    theirs = [asked, answering, answered, asking, saying]
    running = []
    try:
        running.append(sandbox.start("program", limits, (program, asked, answering), fds=(asked, answering)))
        running.append(
            sandbox.start("tester", limits, (tests, answered, asking, saying), fds=(answered, asking, saying))
        )
        while theirs:
            os.close(theirs.pop())
        return _said(verdict, until_s) == PASSED
    finally:
        for fd in (*theirs, verdict):
            os.close(fd)
        for one in running:
            one.kill()
        for one in running:
            one.wait()


def require_sandbox() -> None:
    """Raises UsageError where nothing can be run in one, with what is missing."""
    why = _why_not()
    if why:
        raise UsageError(f"the rule code runs what a model wrote, in a sandbox only: {why}")


@cache
def _why_not() -> str:
    _sandbox.cache_clear()
    try:
        _sandbox()
    except NoSandbox as error:
        return str(error)
    return ""


@cache
def _sandbox() -> Sandbox:
    """The first kind of sandbox that this machine makes. Raises NoSandbox for none."""
    return sandbox_of(_loose)


def _loose(sandbox: Sandbox) -> str:
    """What a sandbox of this kind does not hold; empty: nothing. Raises NoSandbox where it can't be made."""
    heard, saying = os.pipe()
    limits = _limits(_TRIAL_S, _TRIAL_BYTES)
    try:
        tried = sandbox.start("trial", limits, (_MOST_THREADS, saying), fds=(saying,), keeps_errors=True)
    except OSError as error:
        os.close(heard)
        raise NoSandbox(str(error)) from None
    finally:
        os.close(saying)
    try:
        said = _said(heard, time.monotonic() + _TRIAL_S).decode()
    finally:
        os.close(heard)
        tried.kill()
    _, errors = tried.communicate()
    if not said.endswith("."):
        raise NoSandbox(errors.decode(errors="replace").strip()[-200:] or f"it did not start within {_TRIAL_S:g} s")
    return said[:-1]


def _limits(timeout_s: float, memory_bytes: int) -> dict[str, int]:
    """By the names that `setrlimit` has. A sandbox is one process, so that they hold for all of it."""
    return {
        "AS": memory_bytes,
        "DATA": memory_bytes,
        "CPU": int(timeout_s) + 1,
        "NPROC": _MOST_THREADS,
        "NOFILE": 64,
        "FSIZE": 0,
        "CORE": 0,
        "MSGQUEUE": 0,
        "MEMLOCK": 0,
        "SIGPENDING": 256,
    }


def _said(fd: int, until_s: float) -> bytes:
    """What is written until the other end is closed, or the time is over; a few words at most."""
    said, poll = b"", select.poll()
    poll.register(fd, select.POLLIN)
    while len(said) < 256 and poll.poll(max(0.0, 1e3 * (until_s - time.monotonic()))):
        part = os.read(fd, 256)
        if not part:
            break
        said += part
    return said
