"""A process that has imported what a worker imports, and becomes one: python -m qserve.worker.standby MODULE

Imports of torch and transformers take seconds, and are most of the start of a small model. This process does them
before it is known which model it will serve; then a line on its standard input says which worker it is. It ends when
that input is closed.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import sys
import warnings
from dataclasses import dataclass
from typing import Any

from qserve.worker.unused_packages import leave_out

__all__ = ["STANDS_BY", "Role", "main"]

STANDS_BY = "qserve-worker stands by"
"""The line that it writes once it has imported all."""
_CHUNK_BYTES = 1 << 16


@dataclass(frozen=True)
class Role:
    """What it becomes: `python -m MODULE SPEC_FILE` with this environment."""

    module: str
    spec_file: str
    environment: dict[str, str]

    def line(self) -> bytes:
        """What is written to its standard input."""
        return json.dumps(vars(self)).encode() + b"\n"

    @classmethod
    def of(cls, line: bytes) -> Role:
        """From `line`."""
        return cls(**json.loads(line))


def main() -> None:
    """Import, wait, become a worker. The names behind MODULE are packages that it must not import."""
    module, *unused = sys.argv[1:]
    leave_out(*unused)
    warnings.simplefilter("default")
    _main_of(module).prepare()
    gc.collect()
    gc.freeze()  # half a million objects of modules, which each collection of the start would walk
    sys.stderr.write(f"{STANDS_BY}\n")
    sys.stderr.flush()
    role = Role.of(_line())
    os.environ.update(role.environment)
    sys.argv = [role.module, role.spec_file]
    _main_of(role.module).main()


def _main_of(module: str) -> Any:
    return importlib.import_module(f"{module}.__main__")


def _line() -> bytes:
    """One line, and no byte beyond it; exits where the other end is closed instead."""
    read = b""
    while not read.endswith(b"\n"):
        chunk = os.read(0, _CHUNK_BYTES)
        if not chunk:
            sys.exit(0)
        read += chunk
    return read


if __name__ == "__main__":
    main()
