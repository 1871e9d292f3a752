"""`python -m qserve.cli.child PARENT up …`: a qserve that stops when process PARENT, which started it, ends.

However that ends: by SIGKILL too, and also before this process has come to its first line.
"""

from __future__ import annotations

import signal
import sys

from qserve.cli.main import main
from qserve.engine.process import end_with_parent

if __name__ == "__main__":
    # SIGTERM: it drains, ends its workers and takes its private folder away.
    end_with_parent(signal.SIGTERM, int(sys.argv.pop(1)))
    main()
