"""`python -m qserve` is the command `qserve`, for where the script is not on the path."""

from __future__ import annotations

from qserve.cli.main import main

main()
