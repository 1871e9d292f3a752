"""What commands print at 80 columns, each screen in a file of its own; a change of one is seen in its diff.

`QSERVE_WRITE_SCREENS=1 pytest FILE` writes the screens of a test file.
"""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["WIDTH", "check_screen"]

WIDTH = 80
_FOLDER = Path(__file__).parent
_WRITE = "QSERVE_WRITE_SCREENS"


def check_screen(name: str, text: str, *, longest: int = WIDTH) -> None:
    """`text` is that of the file `name`.txt, and no line is longer than `longest`."""
    text = "".join(f"{line.rstrip()}\n" for line in text.splitlines())
    file = _FOLDER / f"{name}.txt"
    if os.environ.get(_WRITE):
        file.write_text(text)
    assert text == file.read_text(), f"{file.name} differs; {_WRITE}=1 writes it anew"
    long = [line for line in text.splitlines() if len(line) > longest]
    assert not long, f"longer than {longest} columns: {long}"
