"""No module imports another in a circle, imports inside of functions counted; and none takes a private name."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

from tests.house.sources import PACKAGE, tree_of


def modules() -> dict[str, Path]:
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        found[".".join(parts).removesuffix(".__init__")] = path
    return found


MODULES = modules()


def imports_of(path: Path) -> Iterator[tuple[str, str]]:
    """(module, name) of every import of qserve's own in a file; an empty name for `import module`."""
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names if alias.name in MODULES)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("qserve"):
            yield from ((str(node.module), alias.name) for alias in node.names)


def imported_modules(module: str) -> set[str]:
    pairs = imports_of(MODULES[module])
    targets = {f"{base}.{name}" if f"{base}.{name}" in MODULES else base for base, name in pairs}
    return {target for target in targets if target != module}


def test_no_module_imports_another_in_a_circle() -> None:
    graph = TopologicalSorter({module: imported_modules(module) for module in MODULES})
    try:
        graph.prepare()
    except CycleError as error:
        raise AssertionError(f"a circle: {' ← '.join(error.args[1])}") from None


def test_no_module_takes_a_private_name_of_another() -> None:
    taken = [
        f"{module} takes {base}.{name}"
        for module, path in MODULES.items()
        for base, name in imports_of(path)
        if name.startswith("_") and not name.startswith("__")
    ]
    assert taken == []
