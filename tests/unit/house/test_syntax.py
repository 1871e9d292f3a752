"""Syntax that means something else on an older Python that qserve runs on."""

from __future__ import annotations

import ast

from tests.unit.house.sources import PACKAGE, tree_of


def test_nothing_is_raised_in_an_except_star() -> None:
    """Before Python 3.11.4 it comes out as a group of one, which no `except` for the error itself catches."""
    found = [
        f"{path}:{node.lineno}"
        for path in PACKAGE.rglob("*.py")
        for tried in ast.walk(tree_of(path))
        if isinstance(tried, ast.TryStar)
        for handler in tried.handlers
        for node in ast.walk(handler)
        if isinstance(node, ast.Raise)
    ]
    assert found == []
