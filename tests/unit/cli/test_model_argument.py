"""`qserve plan MODEL`: the model behind the command is the same as --model, in every command that takes one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import pytest

from qserve.cli.options.command import CommandGroup
from qserve.errors import UsageError
from tests.unit.cli.test_sections import COMMANDS

# What a command needs besides its model.
BEFORE = {"train": ["sft"], "plan train": ["--method", "sft"], "deploy": ["k8s"], "quantize": ["--to", "w4a16"]}
TAKES_A_MODEL = [
    path for path, command in COMMANDS.items() if any(one.name == "model_argument" for one in command.params)
]
TAKES_A_PROMPT = ("chat", "run")


def parsed(path: str, *words: str) -> dict[str, Any]:
    """What the command is called with."""
    command = COMMANDS[path]
    with command.make_context(path, [*BEFORE.get(path, []), *words]) as context:
        assert not getattr(context, "_protected_args", ()), "taken for a subcommand"
        return dict(context.params)


def test_every_command_with_a_model_to_load_takes_it_behind() -> None:
    assert set(TAKES_A_MODEL) >= {"plan", "plan train", "up", "train", "compare", "eval", "deploy"}


@pytest.mark.parametrize("path", TAKES_A_MODEL)
def test_it_is_the_same_as_the_flag(path: str) -> None:
    named = parsed(path, "--model", "demo")
    assert named["model"] == "demo" and "model_argument" not in named
    assert parsed(path, "demo") == named
    assert parsed(path, "demo", "--model", "demo") == named


@pytest.mark.parametrize("path", TAKES_A_MODEL)
def test_options_may_come_before_and_behind(path: str) -> None:
    option = next(
        one
        for one in COMMANDS[path].params
        if isinstance(one, click.Option) and one.name in ("quant", "quants", "system", "state_dir")
    )
    flag, value = option.opts[0], "int8"
    assert parsed(path, "demo", flag, value) == parsed(path, flag, value, "demo")


@pytest.mark.parametrize("path", [path for path in TAKES_A_MODEL if path not in TAKES_A_PROMPT])
def test_two_models_are_refused(path: str) -> None:
    with pytest.raises(UsageError, match="two models are named, demo and --model other"):
        parsed(path, "demo", "--model", "other")


@pytest.mark.parametrize("path", [path for path in TAKES_A_MODEL if path not in TAKES_A_PROMPT])
def test_a_second_word_is_refused(path: str) -> None:
    with pytest.raises(click.UsageError, match="unexpected extra argument"):
        parsed(path, "demo", "another")


def test_it_overrides_a_settings_file() -> None:
    with COMMANDS["plan"].make_context("plan", ["--config", "demo-cpu", "qwen3-8b"]) as context:
        assert context.params["model"] == "qwen3-8b"
        assert context.params["gpu"] == "none"


@pytest.mark.parametrize("path", TAKES_A_PROMPT)
def test_a_chat_takes_a_prompt_behind_the_model(path: str) -> None:
    assert parsed(path, "demo", "Hello")["prompt"] == "Hello"
    with pytest.raises(click.UsageError, match="unexpected extra argument"):
        parsed(path, "demo", "Hello", "another")


@pytest.mark.parametrize("path", TAKES_A_PROMPT)
def test_behind_a_model_of_a_flag_comes_the_prompt(path: str) -> None:
    named = parsed(path, "--model", "demo", "Hello")
    assert (named["model"], named["prompt"]) == ("demo", "Hello")
    assert parsed(path, "Hello", "--model", "demo") == named
    with pytest.raises(UsageError, match="two models are named, other and --model demo"):
        parsed(path, "--model", "demo", "other", "Hello")


def test_behind_a_model_of_a_settings_file_comes_the_prompt() -> None:
    assert parsed("run", "--config", "demo-cpu")["model"] == "demo"
    named = parsed("run", "--config", "demo-cpu", "What is 12+30?")
    assert (named["model"], named["prompt"]) == ("demo", "What is 12+30?")


GROUPS = [path for path in TAKES_A_MODEL if isinstance(COMMANDS[path], CommandGroup)]


@pytest.mark.parametrize("path", GROUPS)
def test_a_subcommand_is_no_model(path: str) -> None:
    command = COMMANDS[path]
    assert isinstance(command, CommandGroup)
    (name,) = command.list_commands(click.Context(command))
    with command.make_context(path, [name, "--help-me-not"]) as context:
        assert context.params["model"] is None
        assert (context._protected_args, context.args) == ([name], ["--help-me-not"])
    with pytest.raises(UsageError, match=f"did you mean {name}"):
        parsed(path, f"{name[:-1]}")


@pytest.mark.parametrize("path", GROUPS)
def test_a_folder_is_no_slip_in_a_subcommand(path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = COMMANDS[path]
    assert isinstance(command, CommandGroup)
    (name,) = command.list_commands(click.Context(command))
    (tmp_path / f"{name}s").mkdir()
    monkeypatch.chdir(tmp_path)
    for folder in (f"./{name}", f"{name}/", f"{name}s"):
        assert parsed(path, folder)["model"] == folder
