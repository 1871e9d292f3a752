"""`qserve completion`: what a real shell completes, in each shell that is installed here."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from qserve.cli.completion import command

SHELLS = ("bash", "zsh", "fish")
# How a shell that is no terminal is asked for completions of $WORDS.
ASK = {
    "bash": """
        source "$SCRIPT"
        complete -p qserve >&2
        COMP_WORDS=($WORDS "$LAST") COMP_CWORD=$COUNT
        _qserve_completion qserve
        printf '%s\\n' "${COMPREPLY[@]}"
    """,
    # The two that add matches are its widget's; here they print them.
    "zsh": """
        compdef() { : }
        source "$SCRIPT"
        _describe() { print -l -- "${(@P)3}" }
        compadd() { print -l -- "${(@P)5}" }
        words=(${=WORDS} "$LAST") CURRENT=$((COUNT + 1))
        _qserve_completion
    """,
    "fish": 'source "$SCRIPT"; complete --do-complete "$WORDS $LAST"',
}


@pytest.fixture
def asked(tmp_path: Path):
    """`asked(shell, "qserve up", "--qu")`: the completions of the last word."""
    program = tmp_path / "bin" / "qserve"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\nexec {sys.executable} -m qserve\n")
    program.chmod(0o755)

    def ask(shell: str, words: str, last: str) -> list[str]:
        script = tmp_path / f"qserve.{shell}"
        script.write_text(CliRunner().invoke(command, [shell]).stdout)
        environment = {
            **os.environ,
            "PATH": f"{program.parent}:{os.environ['PATH']}",
            "HF_HUB_CACHE": str(tmp_path),
            "SCRIPT": str(script),
            "WORDS": words,
            "LAST": last,
            "COUNT": str(len(words.split())),
        }
        options = {"bash": ["--norc"], "zsh": ["-f"], "fish": ["--no-config"]}[shell]
        done = subprocess.run(
            [shell, *options, "-c", ASK[shell]], env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return [re.split(r"[\t:]", line)[0] for line in done.stdout.splitlines() if line]

    return ask


@pytest.mark.parametrize("shell", [shell for shell in ASK if shutil.which(shell)])
def test_commands_and_models_are_completed(shell: str, asked) -> None:
    assert asked(shell, "qserve", "co") == ["compare", "completion"]
    assert sorted(asked(shell, "qserve up", "qwen3-32b")) == ["qwen3-32b", "qwen3-32b-awq", "qwen3-32b-fp8"]


@pytest.mark.parametrize(
    ("words", "last", "some"),
    [
        ("up", "Qwen/Qwen3-8", "Qwen/Qwen3-8B"),
        ("plan", "dem", "demo"),
        ("plan --gpu", "rtx-40", "rtx-4090"),
        ("up", "--qu", "--quant"),
        ("up --config", "qwen3-32b-1x", "qwen3-32b-1x24gb"),
        ("plan train --method", "q", "qlora"),
        ("plan", "--help-a", "--help-all"),
        ("reward", "", "check"),
        ("plan", "tr", "train"),
        ("train", "gr", "grpo"),
    ],
)
def test_what_an_option_takes_is_completed(words: str, last: str, some: str) -> None:
    """By what each shell asks of `qserve`: the same for all of them."""
    from click.shell_completion import ShellComplete

    from qserve.cli.main import cli

    found = [
        one.value for one in ShellComplete(cli, {}, "qserve", "_QSERVE_COMPLETE").get_completions(words.split(), last)
    ]
    assert some in found


@pytest.mark.parametrize("shell", SHELLS)
def test_each_shell_has_a_script_that_asks_qserve(shell: str, tmp_path: Path) -> None:
    done = CliRunner().invoke(command, [shell])
    assert done.exit_code == 0 and f"_QSERVE_COMPLETE={shell}_complete" in done.stdout
    script = tmp_path / "script"
    script.write_text(done.stdout)
    if shutil.which(shell):
        subprocess.run([shell, "-n", str(script)], check=True)
