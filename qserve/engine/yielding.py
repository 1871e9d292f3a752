"""`python -m qserve.engine.yielding MODULE …`: a module as a program that computes beside streams.

It yields before the module is imported: an import of a second beside a model that computes on every core is felt in
each of its steps. Standard library alone, for the same reason. Start it with `start_new_session`: what it yields is
its whole session's.
"""

from __future__ import annotations

import contextlib
import os
import runpy
import sys
from pathlib import Path

__all__ = ["yield_the_processor"]

_NICE = 10


def yield_the_processor() -> None:
    """This process gets what streams leave, perhaps on the same core.

    Where the kernel shares time out among sessions first (`sched_autogroup_enabled`), `nice` counts within a session
    alone, and the session has a nice value of its own.
    """
    os.nice(_NICE)
    with contextlib.suppress(OSError):
        Path("/proc/self/autogroup").write_text(str(_NICE))


if __name__ == "__main__":
    yield_the_processor()
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
