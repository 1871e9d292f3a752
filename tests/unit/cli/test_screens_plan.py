"""What `qserve plan` prints at 80 columns: golden screens of a machine that is always the same."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
from click.testing import CliRunner

from qserve.cli.main import cli
from qserve.cli.plan.command import command as plan_command
from qserve.cli.up.command import command as up_command
from qserve.library.planning import plan
from tests.golden.plans.answers import machine
from tests.golden.screens import WIDTH, check_screen

SCREENS = {
    "fits": "--model Qwen/Qwen3-32B --gpu rtx-4090 --quant 4bit --max-model-len 8192",
    "fits-not": "--model Qwen/Qwen3-32B --gpu rtx-3060",
    "fits-not-in-16-bit": "--model Qwen/Qwen3-32B --gpu rtx-4090 --quant bf16",
    "several-cards": "--model Qwen/Qwen3-8B --gpu h100:4",
    "targets": "--model Qwen/Qwen3-8B --gpu h100:4 --rps 20 --ttft 1s",
    "targets-missed": "--model Qwen/Qwen3-32B --gpu h100:2 --rps 40 --ttft 500ms --tpot 20ms",
    "reward": "--model Qwen/Qwen3-8B --reward Qwen/Qwen3-0.6B --gpu a100-80gb",
    "any": "--model Qwen/Qwen3-8B --gpu any --users 50 --monthly",
    "cpu": "--model Qwen/Qwen3-4B --gpu none",
    "offload": "--model Qwen/Qwen3-32B --gpu rtx-4090 --quant bf16 --engine transformers --offload disk",
    "explain": "--model Qwen/Qwen3-8B --gpu rtx-4090:2 --explain",
}
_STATUS = {"fits-not": 3, "fits-not-in-16-bit": 3}


@pytest.fixture(autouse=True)
def always_the_same() -> Iterator[None]:
    with machine():
        yield


@cache  # on a machine that is always the same
def shown(line: str, status: int = 0, width: int = WIDTH) -> str:
    done = CliRunner(env={"COLUMNS": str(width)}).invoke(cli, ["plan", *shlex.split(line)])
    assert done.exit_code == status, done.output
    return done.stdout


@pytest.mark.parametrize("name", SCREENS)
def test_a_screen_is_the_kept_one_and_fits_80_columns_but_for_commands(name: str) -> None:
    text = shown(SCREENS[name], _STATUS.get(name, 0))
    check_screen(f"plan-{name}", text, longest=200)
    assert [line for line in text.splitlines() if len(line.rstrip()) > WIDTH and "  qserve " not in line] == []


@pytest.mark.parametrize("name", SCREENS)
def test_a_screen_ends_with_a_command(name: str) -> None:
    """The one that serves what fits, one that fits where it does not."""
    last = shown(SCREENS[name], _STATUS.get(name, 0)).splitlines()[-1].strip()
    assert last.startswith("qserve plan " if name in _STATUS or name == "any" else "qserve up ")


def test_the_command_that_serves_has_the_flags_that_were_given() -> None:
    given = "--model Qwen/Qwen3-8B --max-model-len 4096 --gpu h100:2 --replicas 2 --rps 3.5 --ttft 1500ms --explain"
    last = shown(given).splitlines()[-1].strip()
    served = "qserve up --model Qwen/Qwen3-8B --max-model-len 4096 --rps 3.5 --ttft 1500ms --replicas 2"
    assert sorted(shlex.split(last)) == sorted(shlex.split(served))


def test_a_printed_command_has_every_name_and_no_key() -> None:
    text = shown("--model demo --gpu none --served-model-name a --served-model-name b --api-key sk-secret")
    assert text.splitlines()[-1] == "  qserve up --model demo --served-model-name a --served-model-name b --gpu none"
    assert "sk-secret" not in text
    too_large = "--model Qwen/Qwen3-32B --gpu rtx-3060 --api-key sk-secret"
    assert "sk-secret" not in shown(too_large, 3) + shown(f"{too_large} --json", 3)


def test_a_plan_for_this_machine_is_served_here() -> None:
    here = shown("--model Qwen/Qwen3-0.6B --gpu none").splitlines()
    assert here[-2:] == ["Serve it:", "  qserve up --model Qwen/Qwen3-0.6B --gpu none"]


def test_a_deployments_file_is_served_by_its_name() -> None:
    last = shown("--config qwen3-32b-1x24gb").splitlines()[-1]
    assert last.startswith("  qserve up --config ") and "qwen3-32b-1x24gb" in last and "--model" not in last


def test_every_flag_of_a_plan_that_the_next_command_may_carry_is_one_of_up() -> None:
    from qserve.service.next_command import OF_PLAN_ALONE

    flags = {flag for option in plan_command.params for flag in option.opts}
    served = {flag for option in up_command.params for flag in option.opts}
    assert flags - served <= OF_PLAN_ALONE


def test_a_plan_that_answers_slower_than_people_read_is_not_green() -> None:
    text = shown(SCREENS["offload"])
    assert text.startswith(" fits, too slow to chat ")
    assert shown(SCREENS["fits"]).startswith(" fits  ")


@pytest.mark.parametrize(
    "options",
    [
        {"gpu": "rtx-4090", "quant": "4bit"},
        {"gpu": "rtx-3060"},
        {"gpu": "none"},
        {"gpu": "h100", "reward": "demo", "max-length": 512},
    ],
)
def test_a_printed_plan_is_what_the_command_prints(options: dict[str, Any]) -> None:
    flags = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    said = shown(shlex.join(["--model", "Qwen/Qwen3-32B", *flags]), 3 if options["gpu"] == "rtx-3060" else 0)
    found = plan("Qwen/Qwen3-32B", **{name.replace("-", "_"): value for name, value in options.items()})
    assert str(found).splitlines() == said.splitlines()
    assert "\x1b" not in str(found)
    assert len(repr(found)) < 160 and "Qwen/Qwen3-32B" in repr(found)


@pytest.mark.parametrize("reward", ["Qwen/Qwen3-0.6B", "Qwen/Qwen3-235B-A22B"])
def test_a_plan_of_two_models_is_what_the_command_prints(reward: str) -> None:
    found = plan("Qwen/Qwen3-0.6B", gpu="rtx-3060:2", reward=reward, reward_quant="bf16")
    assert found.reward is not None and found.why_not is None  # the chat model fits
    assert found.fits == found.reward.fits == (reward == "Qwen/Qwen3-0.6B")
    line = f"--model Qwen/Qwen3-0.6B --gpu rtx-3060:2 --reward {reward} --reward-quant bf16"
    status = 0 if found.fits else 3
    assert str(found).splitlines() == shown(line, status).splitlines()
    assert found.to_json() == json.loads(shown(f"{line} --json", status))
    assert repr(found).endswith(f"+ {found.reward!r}") and found.reward._repr_html_() in found._repr_html_()


SLOW = "--model Qwen/Qwen3-32B --gpu none --users 4 --tpot 100ms"


def test_each_way_out_of_a_slow_plan_is_shown_once() -> None:
    kept, faster = shown(SLOW).split("What would keep the targets:")[1].split("What would be faster:")
    ways = [
        [line.strip() for line in part.splitlines() if line.startswith("   qserve plan ")] for part in (kept, faster)
    ]
    assert ways[0] and ways[1] and not set(ways[0]) & set(ways[1])
    for way in (*ways[0], *ways[1]):
        assert way.startswith("qserve plan --model ") and "--users " in way and "--tpot 100ms" in way
    assert "--quant" not in faster, "it was not given"


@pytest.mark.parametrize(
    ("line", "flags"),
    [
        (f"{SLOW} --no-learn --explain", "--users 4 --tpot 100ms --no-learn"),
        ("--model Qwen/Qwen3-32B --gpu rtx-3060 --burst 3 --ttft 2s --quant 4bit", "--burst 3 --ttft 2s"),
        ("--model Qwen/Qwen3-32B --gpu rtx-3060 --engine-args --swap-space=2", "--engine-args --swap-space=2"),
    ],
)
def test_the_command_of_a_way_out_has_the_flags_that_were_given(line: str, flags: str) -> None:
    document = json.loads(CliRunner().invoke(cli, ["plan", *shlex.split(line), "--json"]).stdout)
    commands = [way["command"] for way in document["suggestions"]]
    assert commands
    for command in commands:
        assert set(shlex.split(flags)) <= set(shlex.split(command)) and "--explain" not in command
        assert CliRunner().invoke(cli, shlex.split(command)[1:]).exit_code == 0, command
