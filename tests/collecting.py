"""Test files are rewritten and compiled by one process of pytest-xdist, not by each: ten seconds in a fresh clone.

pytest keeps what it has rewritten beside the file. The first process makes all of it while the others wait, and the
processor has mypy to run meanwhile (`make test`); where it is there already nobody waits.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

__all__ = ["rewritten_once"]

_TESTS = Path(__file__).parent
_FIRST, _LIMIT_S = "gw0", 180


@contextlib.contextmanager
def rewritten_once() -> Iterator[None]:
    """Around a collection; of the processes of one run the first goes ahead."""
    process, run = os.environ.get("PYTEST_XDIST_WORKER"), os.environ.get("PYTEST_XDIST_TESTRUNUID")
    if process is None or run is None or _are_rewritten():
        yield
        return
    done = Path(tempfile.gettempdir()) / f"qserve-tests-{run}.rewritten"
    if process != _FIRST:
        waits_until = time.monotonic() + _LIMIT_S
        while not done.exists() and time.monotonic() < waits_until:
            time.sleep(0.1)
        yield
        return
    try:
        yield
    finally:
        done.touch()
        atexit.register(done.unlink, missing_ok=True)  # tests begin when all have collected


def _are_rewritten() -> bool:
    """Most of them: a few that were changed are no reason to wait."""
    num_files = sum(1 for _ in _TESTS.rglob("test_*.py"))
    return sum(1 for _ in _TESTS.rglob("test_*-pytest-*.pyc")) > num_files / 2
