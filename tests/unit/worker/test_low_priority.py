"""A program that yields the processor does so before it is imported."""

from __future__ import annotations

import os
import subprocess
import sys

PROGRAM = """
import os, sys
while_importing = os.nice(0)
if __name__ == "__main__":
    print(while_importing, *sys.argv[1:])
"""


def test_a_module_is_imported_and_run_with_less_weight(tmp_path):
    (tmp_path / "some_program.py").write_text(PROGRAM)
    told = subprocess.run(
        [sys.executable, "-m", "qserve.worker.low_priority", "some_program", "one", "--two"],
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
        start_new_session=True,
        timeout=30,
    ).stdout
    assert told.split() == [str(min(os.nice(0) + 10, 19)), "one", "--two"]
