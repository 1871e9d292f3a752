"""What is in the repository: nothing of one machine, nothing unfinished, tables that load, a wheel that is whole."""

from __future__ import annotations

import os
import re
import subprocess
import tomllib
from pathlib import Path

import pytest

from qserve.core import facts

ROOT = Path(__file__).parents[2]
TABLES = sorted((ROOT / "configs").glob("*.toml"))
# Spelled so that this file does not find itself.
FORBIDDEN = {
    "a folder of one machine": re.compile(r"(?<![\w.}~])/(?:wo" + r"rk|opt|root)/|/tmp/" + r"w\b|\.\./" + "shared"),
    "unfinished work": re.compile(r"\b(?:TO" + r"DO|FIX" + r"ME|XX" + r"X)\b"),
    "a host of a package registry": re.compile(r"py" + r"pi\.org|python" + r"hosted|download\.py" + r"torch"),
}
LARGEST_BYTES = 8 * 1024 * 1024


def tracked():
    listing = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=False)
    if listing.returncode:
        pytest.skip("this is no git checkout")
    return [ROOT / name.decode() for name in listing.stdout.split(b"\0") if name and (ROOT / name.decode()).is_file()]


@pytest.mark.parametrize("what", FORBIDDEN)
def test_tracked_files_hold_nothing_forbidden(what):
    found = []
    for path in tracked():
        try:
            text = path.read_text()
        except UnicodeDecodeError:
            continue
        found += [f"{path.relative_to(ROOT)}: {match[0]}" for match in FORBIDDEN[what].finditer(text)]
    assert not found, f"{what}: {', '.join(found[:5])}"


def test_no_tracked_file_is_large():
    assert not [path.name for path in tracked() if path.stat().st_size > LARGEST_BYTES]


def test_no_tracked_file_is_empty():
    """A file of no bytes is what a test that took a wrong value for a file's name leaves behind."""
    empty = {path.name for path in tracked() if path.stat().st_size == 0}
    assert empty <= {"py.typed", "__init__.py"}


def test_nothing_that_is_ignored_is_tracked():
    listing = subprocess.run(
        ["git", "ls-files", "-ci", "--exclude-standard"], cwd=ROOT, capture_output=True, check=False
    )
    assert listing.stdout == b""


def test_scripts_that_are_called_by_name_can_be_run():
    for name in (".ci/run", "scripts/setup.sh"):
        assert os.access(ROOT / name, os.X_OK), f"{name} is not executable"


@pytest.mark.parametrize("path", TABLES, ids=lambda path: path.name)
def test_every_table_loads(path):
    assert facts.load(path.stem) == tomllib.loads(path.read_text())
