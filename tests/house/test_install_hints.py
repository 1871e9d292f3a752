"""What a message or page says to install is what it names: `qserve` on the package index is somebody else's."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from qserve.errors import MissingExtra
from qserve.packages import REQUIREMENTS, install_command

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
FOREIGN = re.compile(
    r"(?<![\w.-])qserve\[(?=[a-z'\"{])|(?:pip|uv|pipx) (?:pip )?(?:install|add)\b[^\n`]*[ '\"]qserve(?![\w./-])"
)
WRITTEN = {".py", ".md", ".toml", ".sh", ".yml", ".yaml", ".txt", ".html", ".js", ".ipynb", ""}


def files():
    names = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\n")
    return [ROOT / name for name in names if Path(name).suffix in WRITTEN and (ROOT / name).is_file()]


def test_no_hint_installs_the_package_of_somebody_else():
    found = [
        f"{file.relative_to(ROOT)}: {match[0]}"
        for file in files()
        if file != Path(__file__).resolve()
        for match in FOREIGN.finditer(file.read_text(errors="replace"))
    ]
    assert not found


@pytest.mark.parametrize(
    "hint", ["pip install 'qserve[eval]'", 'pip install "qserve[ui]"', "pip install qserve", "pip install -U qserve\n"]
)
def test_the_search_finds_what_it_is_for(hint):
    assert FOREIGN.search(hint)


@pytest.mark.parametrize(
    "allowed", ["pip install qserve-llm", "pip install ./qserve", "qserve plan", "pip install lm-eval"]
)
def test_the_search_leaves_the_rest(allowed):
    assert not FOREIGN.search(allowed)


def test_the_distribution_has_a_name_of_its_own():
    assert PROJECT["name"] == "qserve-llm"
    assert PROJECT["scripts"] == {"qserve": "qserve.cli.main:main"}


@pytest.mark.parametrize("package", sorted(REQUIREMENTS))
def test_a_hint_asks_for_the_release_that_pyproject_asks_for(package):
    extras = PROJECT["optional-dependencies"].values()
    declared = {
        canonicalize_name(Requirement(text).name): text.replace(" ", "")
        for group in [PROJECT["dependencies"], *extras]
        for text in group
    }
    for text in REQUIREMENTS[package].split():
        name = canonicalize_name(Requirement(text).name)
        assert declared.get(name, text) == text


def test_a_missing_package_is_named_with_what_installs_it():
    said = str(MissingExtra("lm-eval", "`qserve eval`"))
    assert said.startswith("`qserve eval` needs the package lm-eval, which is not installed. Install it: ")
    assert 'pip install "lm-eval[api]>=0.4.13"' in said
    assert install_command("gptqmodel", "optimum") == 'pip install "gptqmodel>=7.5,<7.7" optimum'
