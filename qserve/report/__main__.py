"""`python -m qserve.report STORE < REQUEST`: a page on standard output. The gateway starts it, so that a sweep over a
million requests takes no turn from those that are being answered.

REQUEST is `{"run": id or beginning of one, "live": {worker: {"work", "latency"}}}`. Exit status 2 where
there is no such run, 1 where the store can't be read; the sentence is on standard error.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from qserve.errors import QserveError
from qserve.report import read_report, to_html
from qserve.runs import RunStore

__all__ = ["main"]


def main() -> int:
    """The exit status."""
    store, request = RunStore(Path(sys.argv[1])), json.load(sys.stdin)
    try:
        page = to_html(read_report(store, store.run(request["run"]), request["live"]))
    except QserveError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_status
    sys.stdout.buffer.write(page.encode())
    return 0


if __name__ == "__main__":
    sys.exit(main())
