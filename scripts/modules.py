"""Every module of the package with the first sentence of its docstring.

python scripts/modules.py                 all of them
python scripts/modules.py gateway/relay   those below qserve/gateway/relay
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "qserve"


def first_sentence(path: Path) -> str:
    """Of the module's docstring, on one line; empty where it has none."""
    docstring = ast.get_docstring(ast.parse(path.read_text())) or ""
    return " ".join(docstring.split("\n\n")[0].split())


def main() -> None:
    """Print a line a module, folders in their order. Exit status 1 for a folder that is not there."""
    below = PACKAGE.joinpath(*sys.argv[1:2])
    if not below.is_dir():
        sys.exit(f"qserve/ has no folder {sys.argv[1]}")
    for path in sorted(below.rglob("*.py")):
        if sentence := first_sentence(path):
            print(f"{path.relative_to(PACKAGE)}: {sentence}")


if __name__ == "__main__":
    main()
