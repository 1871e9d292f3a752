"""`python -m qserve`: the same as the command, for where it is not on the PATH."""

from __future__ import annotations

from qserve.cli.main import main

if __name__ == "__main__":
    main()
