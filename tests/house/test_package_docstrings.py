"""What a package's docstring lists is there: a file or a folder at the beginning of a line."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from tests.house.sources import PACKAGE, tree_of

LISTED = re.compile(r"^ *((?:\w+(?:\.py|/)(?![\w.])(?:, )?)+)", re.MULTILINE)
# Its folders have one form, of which each engine has what it needs.
ENGINES = PACKAGE / "engines"


def listed_in(docstring: str) -> list[str]:
    return [name for found in LISTED.findall(docstring) for name in found.rstrip(", ").split(", ")]


def is_there(folder: Path, name: str) -> bool:
    return (folder / name).exists() or (folder == ENGINES and any(ENGINES.glob(f"*/{name}")))


def test_files_that_a_package_lists_are_there() -> None:
    gone, number = [], 0
    for path in sorted(PACKAGE.rglob("__init__.py")):
        names = listed_in(ast.get_docstring(tree_of(path)) or "")
        number += len(names)
        gone += [f"{path.relative_to(PACKAGE)}: {name}" for name in names if not is_there(path.parent, name)]
    assert number > 100
    assert not gone, "what is not there"


def test_files_and_folders_at_the_beginning_of_a_line_are_listed() -> None:
    docstring = """A package.

find.py, open.py  from --reward to a scorer; other.py is not at the beginning
    parts/        several
HTTP/1.1 and cli/train are no names of files
find the other.py here
"""
    assert listed_in(docstring) == ["find.py", "open.py", "parts/"]
