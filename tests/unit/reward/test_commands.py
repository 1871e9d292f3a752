"""The commands of the reward host, as far as they go without a model."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest

from qserve.cli.reward.eval_reward import command as eval_reward
from qserve.errors import UsageError


@pytest.mark.parametrize("command", ["score", "reward", "eval-reward"])
def test_help_loads_no_engine(command: str) -> None:
    code = (
        "import sys\nfrom qserve.cli.main import cli\n"
        f"cli.main([{command!r}, '--help'], standalone_mode=False)\n"
        "sys.exit(bool({'torch', 'transformers', 'aiohttp', 'starlette'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == 0


def call(*arguments: str) -> None:
    eval_reward.main(list(arguments), standalone_mode=False)


def test_a_file_that_states_no_preferences_is_refused_before_a_model_is_loaded(tmp_path: Path) -> None:
    file = tmp_path / "texts.jsonl"
    file.write_text(json.dumps({"prompt": "a", "response": "b"}) + "\n")
    with pytest.raises(UsageError, match=r"line 1 states no preference: it needs chosen and rejected"):
        call(str(file), "--reward", str(tmp_path / "nowhere"))


def test_a_server_that_is_not_there_is_named(tmp_path: Path) -> None:
    file = tmp_path / "pairs.jsonl"
    file.write_text(json.dumps({"prompt": "a", "chosen": "b", "rejected": "c"}) + "\n")
    with pytest.raises(UsageError, match=r"http://127.0.0.1:9 did not answer POST /v1/reward.*qserve up --reward"):
        call(str(file), "--url", "http://127.0.0.1:9")


def test_words_that_mean_nothing_are_refused(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text("{}")
    bad: list[tuple[Any, ...]] = [("--pooling", "first"), ("--truncate", "middle"), ("--max-length", "0")]
    for flag in bad:
        with pytest.raises(click.BadParameter):
            call(str(tmp_path / "x.jsonl"), *flag)
