"""An engine is a folder and a registry line: nothing outside compares the name of an engine to know what to do."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.house.sources import PACKAGE, tree_of

NAMES = ("vllm", "transformers")
# An engine's own folders, where what it is called may be compared with what is installed.
OWN = [PACKAGE / "engines" / name for name in NAMES]


def literals(node: ast.AST) -> Iterator[object]:
    """Values that stand in a side of a comparison: itself, or the members of a tuple, list or set."""
    members = node.elts if isinstance(node, ast.Tuple | ast.List | ast.Set) else [node]
    yield from (member.value for member in members if isinstance(member, ast.Constant))


def comparisons(path: Path) -> Iterator[int]:
    """Lines that compare something with an engine's name, `match` among them."""
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            yield from (node.lineno for side in sides if set(literals(side)) & set(NAMES))
        elif isinstance(node, ast.MatchValue) and set(literals(node.value)) & set(NAMES):
            yield node.lineno


def test_nothing_is_compared_with_an_engines_name() -> None:
    outside = (path for path in PACKAGE.rglob("*.py") if not any(path.is_relative_to(folder) for folder in OWN))
    outside = (path for path in outside if any(f'"{name}"' in path.read_text() for name in NAMES))  # few: to be quick
    found = {str(path.relative_to(PACKAGE)): list(comparisons(path)) for path in outside}
    assert {name: lines for name, lines in found.items() if lines} == {}, (
        "ask the engine: its planner, its launch, its checks or its scorer (qserve.planner.engine: Engine)"
    )


def test_the_planner_and_the_core_name_no_engine_outside_of_their_folders() -> None:
    for name in ("make.py", "plan.py", "request.py", "term.py", "candidate.py", "outcome.py", "changes.py"):
        literals = {
            node.value for node in ast.walk(tree_of(PACKAGE / "planner" / name)) if isinstance(node, ast.Constant)
        }
        assert not literals & set(NAMES), name
