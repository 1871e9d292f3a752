"""Syntax that does something else than it seems to: on an older Python that qserve runs on, or with some texts."""

from __future__ import annotations

import ast

from tests.house.sources import PACKAGE, tree_of


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


def test_json_lines_are_split_as_bytes() -> None:
    """A str is split at U+2028, U+2029 and U+0085 too, which JSON strings may hold as they are."""
    found = [
        f"{path}:{node.lineno}"
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp | ast.Call)
        if {"loads", "read_text", "splitlines"}
        <= {one.attr for one in ast.walk(node) if isinstance(one, ast.Attribute)}
    ]
    assert found == []
