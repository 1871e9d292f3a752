"""Where there is no terminal nothing is wrapped: a row is a line, and grep finds whole ids."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from click.testing import CliRunner

from qserve.cli.models import command
from qserve.errors import UsageError
from qserve.hub.bundled import known_ids

ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "COLUMNS"}


def piped(*arguments, **environment):
    command = [sys.executable, "-m", "qserve", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**ENVIRONMENT, **environment})
    assert not [line for line in done.stderr.splitlines() if not line.startswith("The organisation can be left out")]
    return done.stdout.splitlines()


def test_every_id_stands_whole_in_a_line() -> None:
    lines = piped("models")
    for model_id in known_ids():
        assert any(line.startswith(f"{model_id} ") for line in lines), model_id


def test_columns_are_respected() -> None:
    assert max(len(line) for line in piped("models", COLUMNS="60")) <= 60


def test_sentences_are_not_cut() -> None:
    """A way out, a note, a reason: each is one line, however long."""
    lines = piped("plan", "--model", "Qwen/Qwen32B", "--gpu", "rtx-4090")
    assert any("taken for Qwen/Qwen3-32B" in line and line.endswith(")") and len(line) > 120 for line in lines)


@pytest.mark.parametrize(("part", "told"), [("qwen3:33b", "Qwen/Qwen3-32B"), ("zzz", "`qserve models` lists all")])
def test_a_part_of_no_name_is_told_what_was_meant(part: str, told: str) -> None:
    done = CliRunner().invoke(command, [part])
    assert isinstance(done.exception, UsageError) and told in str(done.exception)
    assert CliRunner().invoke(command, [part, "--json"]).stdout == "[]\n"


def test_a_part_may_be_written_as_ollama_does() -> None:
    assert "Qwen/Qwen3-32B" in CliRunner().invoke(command, ["qwen3:32b"]).stdout
