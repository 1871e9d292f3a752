"""--cpu-activations is one option, and every command that starts or plans a worker passes it on."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import click
import pytest

from qserve.cli.main import cli
from qserve.cli.reward.source import opened_scorer
from qserve.core.hardware import CpuFeatures, Hardware
from qserve.errors import UsageError
from qserve.planner.engine import option_value
from qserve.reward.settings import RewardSettings
from qserve.service.knowledge import Knowledge
from qserve.service.machine import Machine
from qserve.service.plan import plan_service
from qserve.service.request import ServiceRequest
from qserve.units import GIB

COMMANDS = ("plan", "up", "deploy", "score", "eval-reward", "reward check", "eval", "compare")


class Stop(Exception):
    """Far enough."""


def option_of(words: str) -> click.Option:
    command: Any = cli
    for word in words.split():
        command = command.get_command(click.Context(command), word)
    return next(one for one in command.params if one.name == "cpu_activations")


@pytest.mark.parametrize("words", COMMANDS[1:])
def test_it_is_the_same_option_everywhere(words: str) -> None:
    first, other = option_of(COMMANDS[0]), option_of(words)
    assert (other.help, other.default, other.opts) == (first.help, first.default, first.opts)
    assert isinstance(other.type, click.Choice)
    assert list(other.type.choices) == ["auto", "exact", "int8"]


@pytest.mark.parametrize("asked", ["auto", "exact", "int8"])
def test_a_model_that_is_scored_with_here_is_planned_with_it(asked: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """`score`, `eval-reward` and `reward check` open their scorer so."""
    told: list[Any] = []

    def open_scorer(*arguments: Any) -> None:
        told.append(arguments[-1])
        raise Stop

    opening = ModuleType("qserve.reward.open")  # which brings torch
    opening.open_scorer = open_scorer  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, opening.__name__, opening)
    values = {**vars(RewardSettings()), "quant": "4bit", "cpu_activations": asked}
    with pytest.raises(Stop):
        opened_scorer("demo", values)
    assert option_value(told[0], "cpu_activations") == asked
    assert told[0].quant == "4bit"


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """`started("compare", "compare.steps", …)`: the arguments of the server that the command starts for itself."""

    def run(command: str, module: str, *words: str) -> list[str]:
        told: list[str] = []

        @contextlib.contextmanager
        def own_server(arguments: list[str], *rest: Any) -> Iterator[None]:
            told.extend(arguments)
            raise Stop
            yield

        monkeypatch.setattr(f"qserve.cli.{module}.own_server", own_server)
        with pytest.raises(Stop):
            cli.main([command, *words], standalone_mode=False)
        return told

    return run


def test_servers_of_their_own_are_started_with_it(
    started: Callable[..., list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pairs = tmp_path / "pairs.jsonl"
    pairs.write_text(json.dumps({"prompt": "a", "chosen": "b", "rejected": "c"}) + "\n")
    monkeypatch.setenv("QSERVE_STATE_DIR", str(tmp_path / "state"))
    asked = ("--reward", "demo", "--preferences", str(pairs))
    there = started("compare", "compare.steps", *asked, "--cpu-activations", "exact", "--out", str(tmp_path / "exact"))
    assert there[2:4] == ["--cpu-activations", "exact"]
    assert "--cpu-activations" not in started("compare", "compare.steps", *asked, "--out", str(tmp_path / "auto"))


def test_a_running_server_is_told_nothing() -> None:
    with pytest.raises(
        UsageError, match=r"^--cpu-activations is for a server that this command starts; name its model with --model"
    ):
        cli.main(["eval", "--url", "http://127.0.0.1:9", "--cpu-activations", "exact"], standalone_mode=False)
    file = str(Path(__file__))
    with pytest.raises(UsageError, match=r"^--cpu-activations: a server loaded its model already"):
        words = ["eval-reward", file, "--url", "http://127.0.0.1:9", "--cpu-activations", "exact"]
        cli.main(words, standalone_mode=False)


@pytest.mark.parametrize(("asked", "done"), [("auto", "int8"), ("exact", "exact")])
def test_what_is_deployed_is_planned_with_it(asked: str, done: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The chat model and the reward model beside it."""
    flags = frozenset({"avx512_bf16", "avx512_vnni", "avx512vbmi"})
    machine = replace(Hardware((), 64 * GIB, 64 * GIB, 4), cpu=CpuFeatures("", flags))
    monkeypatch.setattr("qserve.service.machine.hardware_of", lambda gpu: machine)
    request = ServiceRequest.from_flags(
        {
            "model": "demo",
            "reward": "demo",
            "engine": "transformers",
            "quant": "4bit",
            "cpu_activations": asked,
            "reward_quant": "int8",
        }
    )
    service = plan_service(request, Machine.named("none"), Knowledge())
    assert [model.whole.cpu_activations for model in service.models] == [done, done]
