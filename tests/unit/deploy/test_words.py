"""A value of an option as a word of a command line, and the value that is read from it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from qserve.cli.deploy import command as deploy
from qserve.cli.main import cli
from qserve.cli.up.command import command as up
from qserve.deploy.argv import flags_of, words_of


@pytest.mark.parametrize(
    ("name", "value", "word"),
    [
        ("ttft", 2000.0, "2s"),
        ("ttft", 1500.0, "1500ms"),
        ("tpot", 1234567.5, "1234567.5ms"),
        ("rps", 3.0, "3"),
        ("rps", 1234.5678, "1234.5678"),
        ("users", 4, "4"),
        ("model", Path("/m"), "/m"),
    ],
)
def test_a_value_is_written_as_people_write_it_and_read_as_it_was(name: str, value: Any, word: str) -> None:
    option = next(one for one in up.params if one.name == name)
    assert flags_of(option, value) == [(f"--{name}", word)]
    assert words_of([option], {name: value}) == [f"--{name}={word}"]
    assert str(option.type_cast_value(click.Context(up), word)) == str(value)


def test_a_switch_and_an_option_of_several_values() -> None:
    several = click.Option(["--key"], multiple=True)
    assert flags_of(several, ("a", "b")) == [("--key", "a"), ("--key", "b")]
    switch = click.Option(["--a/--no-a"])
    assert [flags_of(switch, one) for one in (True, False)] == [[("--a", None)], [("--no-a", None)]]
    assert words_of([switch, several], {"a": False, "key": ("b",)}) == ["--no-a", "--key=b"]
    assert flags_of(click.Option(["--only"], is_flag=True), False) == []


def test_a_service_and_a_plan_write_a_target_alike() -> None:
    flags = ["--model", "demo", "--gpu", "none", "--users", "2", "--ttft", "2s"]
    written = CliRunner().invoke(deploy, ["compose", *flags]).stdout
    assert "--ttft=2s" in written and "--ttft=2000" not in written
    assert "--ttft 2s" in CliRunner().invoke(cli, ["plan", *flags]).stdout.splitlines()[-1]
