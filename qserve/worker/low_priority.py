"""`python -m qserve.worker.low_priority MODULE …`: runs a module as a program at low priority, beside a model.

The priority is lowered before the module is imported: an import of a second on a busy core would slow each step of the
model. Standard library alone, for the same reason. Start it with `start_new_session`: the priority is that of the
whole session.
"""

from __future__ import annotations

import contextlib
import os
import runpy
import sys
from pathlib import Path

__all__ = ["lower_priority"]

_NICE = 10


def lower_priority() -> None:
    """Give this process the lowest share of its cores.

    Where the kernel shares time out among sessions first (`sched_autogroup_enabled`), `nice` counts within a session
    alone, and the session has a nice value of its own.
    """
    os.nice(_NICE)
    with contextlib.suppress(OSError):
        Path("/proc/self/autogroup").write_text(str(_NICE))


if __name__ == "__main__":
    lower_priority()
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
