"""What the files of a folder read of an untyped `values`, and how many modules they import."""

from __future__ import annotations

import ast
from pathlib import Path


def values_read(tree: ast.AST) -> int:
    """How often `values["..."]` is read, or `self.values["..."]`."""
    return sum(map(_is_reading, ast.walk(tree)))


def _is_reading(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Subscript)
        and isinstance(node.ctx, ast.Load)
        and ast.unparse(node.value).rpartition(".")[2] == "values"
        and isinstance(node.slice, ast.Constant)
    )


def modules_imported(tree: ast.AST, package: str) -> int:
    """Different modules of the package that a file imports, at its top or within a function."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
        elif isinstance(node, ast.Import):
            found.update(one.name for one in node.names)
    return sum(name.split(".")[0] == package for name in found)


def files_of(folder: Path) -> dict[str, ast.Module]:
    """The sources below a folder, by their paths in it."""
    return {path.relative_to(folder).as_posix(): ast.parse(path.read_text()) for path in sorted(folder.rglob("*.py"))}
