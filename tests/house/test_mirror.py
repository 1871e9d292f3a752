"""The tests of a package are found by its name: the folders of tests/unit are those of qserve."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
UNIT = ROOT / "tests/unit"
# `house` is about the repository; bench/ is no part of the package.
FILES = sorted(path for path in UNIT.rglob("test_*.py") if path.relative_to(UNIT).parts[0] not in ("house", "bench"))
# What tests of any package make their input of, and run as a user would.
INPUTS = ("qserve.cli", "qserve.core", "qserve.errors", "qserve.hub", "qserve.units")


def _imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{name.name}" for name in node.names)
        elif isinstance(node, ast.Import):
            yield from (name.name for name in node.names)


def _is_of(name: str, package: str) -> bool:
    return f"{name}.".startswith(f"{package}.")


def misplaced(path: Path) -> str | None:
    """Why this file belongs elsewhere."""
    package = ".".join(("qserve", *path.relative_to(UNIT).parent.parts))
    if not (ROOT / package.replace(".", "/") / "__init__.py").is_file():
        return f"there is no package {package}"
    tested = {name for name in _imported(path) if _is_of(name, "qserve")}
    others = {name for name in tested if not any(_is_of(name, known) for known in INPUTS)}
    if others and not any(_is_of(name, package) for name in tested):
        return f"it tests {', '.join(sorted(others))}, nothing of {package}"
    return None


def test_the_tests_of_a_package_are_in_its_folder() -> None:
    assert len(FILES) > 300
    found = {str(path.relative_to(ROOT)): reason for path in FILES if (reason := misplaced(path))}
    assert found == {}


@pytest.mark.parametrize(
    ("folder", "text", "reason"),
    [
        ("speed", "", "there is no package qserve.speed"),
        ("planner", "from qserve.gateway import routes", "it tests qserve.gateway.routes, nothing of qserve.planner"),
        ("planner", "from qserve.gateway import routes\nfrom qserve.planner import make", None),
        ("planner", "from qserve.cli.main import cli", None),
    ],
)
def test_a_misplaced_file_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str, text: str, reason: str | None
) -> None:
    monkeypatch.setattr("tests.house.test_mirror.UNIT", tmp_path)
    path = tmp_path / folder / "test_some.py"
    path.parent.mkdir()
    path.write_text(text)
    assert misplaced(path) == reason
