"""docs/architecture.md is true: every path and every name in it exists."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "architecture.md").read_text()
QUOTED = re.findall(r"`([^`\n]+)`", PAGE.replace("```", ""))
PATHS = sorted({text for text in QUOTED if re.fullmatch(r"[\w./-]+(\.\w+|/)", text) and ("/" in text or ".py" in text)})
NAMES = sorted({text for text in QUOTED if re.fullmatch(r"[\w./-]+\.py: [\w.]+", text)})
TOP_FOLDERS = ("configs/", "docs/", "tests/", "scripts/", "bench/", "evals/")


def resolve(path):
    # Of what both have (bench/), the package's own is written with qserve/ in front.
    below_root = path.startswith((*TOP_FOLDERS, "qserve/")) or path == "pyproject.toml"
    return (ROOT if below_root else ROOT / "qserve") / path


def defined_names(node, prefix=""):
    """Functions, classes, methods and module-level constants, dotted."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield prefix + child.name
            if isinstance(child, ast.ClassDef):
                yield from defined_names(child, f"{prefix}{child.name}.")
        elif isinstance(child, ast.Assign | ast.AnnAssign):
            targets = child.targets if isinstance(child, ast.Assign) else [child.target]
            yield from (prefix + target.id for target in targets if isinstance(target, ast.Name))


def test_the_page_quotes_enough_to_be_worth_checking():
    assert len(PATHS) > 30
    assert len(NAMES) > 50


@pytest.mark.parametrize("path", PATHS)
def test_every_path_exists(path):
    routes = ("/health", "/openapi.json", "/ready")
    if path not in routes:
        assert resolve(path).exists(), f"docs/architecture.md names {path}, which is not there"


@pytest.mark.parametrize("quoted", NAMES)
def test_every_name_exists(quoted):
    path, name = quoted.split(": ")
    found = set(defined_names(ast.parse(resolve(path).read_text())))
    assert name in found, f"docs/architecture.md names {quoted}; {path} defines no {name}"


def test_every_package_has_its_line():
    packages = {path.parent.name for path in (ROOT / "qserve").glob("*/__init__.py")}
    table = set(re.findall(r"^\| .*", PAGE, re.MULTILINE))
    named = set(re.findall(r"`(\w+)/`", "\n".join(table)))
    assert packages <= named, f"docs/architecture.md has no line for {packages - named}"
