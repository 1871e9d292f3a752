"""`python -m qserve.cli.child up …`: a qserve that stops when the command that started it ends, even by SIGKILL."""

from __future__ import annotations

import signal

from qserve.cli.main import main
from qserve.engine.process import end_with_parent

if __name__ == "__main__":
    end_with_parent(signal.SIGTERM)  # drains, ends its workers and takes its private folder away
    main()
