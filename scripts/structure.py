"""What the package's structure is measured by, before and after a change of it.

python scripts/structure.py http    the modules that import a library for HTTP or httptools, and their number
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
HTTP_LIBRARIES = ("urllib.request", "urllib.error", "http.client", "aiohttp", "httpx", "httptools")


def imported_by(path: Path) -> Iterator[str]:
    """The dotted names that a module imports, at its top or later; of `from a import b` both `a` and `a.b`."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def speaks_http(path: Path) -> bool:
    """Whether a module imports one of `HTTP_LIBRARIES`."""
    return any(
        name == library or name.startswith(f"{library}.") for name in imported_by(path) for library in HTTP_LIBRARIES
    )


def main() -> None:
    """Print a line a module, then their number. Exit status 1 for another measure."""
    if sys.argv[1:] != ["http"]:
        sys.exit(__doc__)
    found = [path for path in sorted((ROOT / "qserve").rglob("*.py")) if speaks_http(path)]
    for path in found:
        print(path.relative_to(ROOT))
    print(f"{len(found)} modules speak HTTP by a library of their own")


if __name__ == "__main__":
    main()
