"""The package's sources, parsed once for all tests of this folder."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

__all__ = ["PACKAGE", "tree_of"]

PACKAGE = Path(__file__).parents[2] / "qserve"


@cache
def tree_of(path: Path) -> ast.Module:
    """Not to be changed: others read it too."""
    return ast.parse(path.read_text())
