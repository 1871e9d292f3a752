"""Commands of qserve in children of one process that has imported what they need: most of them do little else.

with commands(folder) as called:
    status, said = called("plan", "--model", "demo")
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

__all__ = ["commands"]

_IMPORTS = """
import qserve.cli.plan.command, qserve.cli.up.command, qserve.hub.resolve, qserve.planner, qserve.reward.find
import qserve.service.engine, rich.table, yaml
"""

# An answer is an exit status. A limit of 0 is none.
_SERVER = """
import json, os, resource, signal, sys
from qserve.cli.main import cli, main
exec(sys.argv[3])
limit_s, limit_bytes = int(sys.argv[1]), int(sys.argv[2])
for line in sys.stdin:
    arguments, said = json.loads(line)
    child = os.fork()
    if not child:
        signal.alarm(limit_s)
        if limit_bytes:
            resource.setrlimit(resource.RLIMIT_AS, (limit_bytes, limit_bytes))
        os.dup2(os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 2)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        sys.argv = ["qserve", *arguments]
        try:
            main()
        except SystemExit as stop:
            status = stop.code or 0
        except BaseException:
            import traceback
            traceback.print_exc()
            status = 70
        sys.stdout.flush()
        os._exit(status)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""

Called = Callable[..., tuple[int, str]]


@contextlib.contextmanager
def commands(folder: Path, limit_s: int, limit_bytes: int = 0, **environment: str) -> Iterator[Called]:
    """`called(*arguments)`: status and standard error of a `qserve` that may take so long and so much memory."""
    command = [sys.executable, "-c", _SERVER, str(limit_s), str(limit_bytes), _IMPORTS]
    environment = {
        **os.environ,
        "QSERVE_STATE_DIR": str(folder / "state"),
        "XDG_STATE_HOME": str(folder / "state"),
        **environment,
    }
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment) as server:
        told, heard = server.stdin, server.stdout
        assert told is not None and heard is not None

        def call(*arguments: str) -> tuple[int, str]:
            said = folder / "stderr"
            told.write(json.dumps([arguments, str(said)]) + "\n")
            told.flush()
            return int(heard.readline()), said.read_text()

        yield call
        told.close()
