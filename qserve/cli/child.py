"""`python -m qserve.cli.child PARENT up …`: runs qserve and stops it when its parent process PARENT ends.

Also if the parent is killed by SIGKILL, or ends before this process has started.
"""

from __future__ import annotations

import signal
import sys

from qserve.cli.main import main
from qserve.worker.process import end_with_parent

if __name__ == "__main__":
    # SIGTERM: it drains, ends its workers and removes its private folder.
    end_with_parent(signal.SIGTERM, int(sys.argv.pop(1)))
    main()
