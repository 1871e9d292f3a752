"""`models:` in a file of settings: what an entry may say, and what is told of one that is wrong."""

from __future__ import annotations

from pathlib import Path

import click
import pytest

from qserve.cli.options import deployment
from qserve.cli.options.service_models import residents_of
from qserve.errors import UsageError
from qserve.planner.residency.schedule import Rules
from qserve.service.residents import Keeping, ResidentsRequest
from qserve.units import GIB

TWO = """
models:
  - model: demo
    served_model_name: [a, a-too]
    max_model_len: 512
    pin: true
  - reward: demo
    ttl: 10m
    priority: 2.5
    preload: false
quant: bf16
residency: {window: 3, wait: 1m, memory: 2GiB}
"""


def loaded(text: str, folder: Path) -> deployment.Deployment:
    file = folder / "service.yaml"
    file.write_text(text)
    return deployment.load(str(file))


def request_of(text: str, folder: Path, **flags: object) -> ResidentsRequest:
    file = loaded(text, folder)
    return residents_of(file.models, file.residency, {**file.options, **flags}, file.path)


def test_each_entry_is_a_model_with_its_own_options(tmp_path: Path) -> None:
    request = request_of(TWO, tmp_path)
    chat, reward = request.models
    assert (chat.model, chat.service.names, chat.service.plan.max_model_len) == ("demo", ("a", "a-too"), 512)
    assert chat.service.reward is None and chat.keeping == Keeping(is_pinned=True)
    assert reward.service.model is None and reward.model == "demo"
    assert reward.keeping == Keeping(ttl_s=600, priority=2.5, preload=False)
    assert (request.rules, request.wait_s, request.most_bytes) == (Rules(3), 60, 2 * GIB)


def test_what_holds_for_all_is_said_once_and_an_entry_wins(tmp_path: Path) -> None:
    text = "models:\n  - model: demo\n  - {model: demo, quant: int8}\nquant: bf16\n"
    assert [one.service.plan.quant for one in request_of(text, tmp_path).models] == ["bf16", "int8"]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("models: demo", "models takes a list, one entry a model"),
        ("models: []", "models takes a list"),
        ("models: [demo]", "models takes a list"),
        ("models:\n  - quant: int8", r"models\[0\] names no model; an entry is one model"),
        ("models:\n  - {model: demo, reward: demo}", r"models\[0\] names model and reward; an entry is one model"),
        ("models:\n  - {model: demo, port: 80}", r"models\[0\] has port, which is no setting of one model; those are "),
        ("models:\n  - {model: demo, max_model_len: x}", r"models\[0\]: max_model_len is 'x'"),
        ("models:\n  - {model: demo, reward_quant: int8}", r"models\[0\]: reward_quant: for a reward model"),
        ("models:\n  - {model: demo, pin: 1}", r"models\[0\]: pin is 1, but takes true or false"),
        ("models:\n  - {model: demo, ttl: soon}", r"models\[0\]: ttl is 'soon', but takes a time: 300, 90s, 10m or 1h"),
        ("models:\n  - {model: demo, priority: 0}", r"models\[0\]: priority is 0, but takes a number above 0"),
        ("models:\n  - {model: demo, pin: true, ttl: 5}", "pin keeps the model for ever, and ttl lets it go after 5 s"),
        ("models:\n  - {model: demo, model: demo}", "sets model twice"),
        ("model: demo\nresidency: {window: 3}", "residency is for a service of many models; list them under models:"),
    ],
)
def test_an_entry_that_is_wrong_is_told_with_its_place(text: str, told: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=told):
        loaded(text, tmp_path)


@pytest.mark.parametrize(
    ("residency", "told"),
    [("3", "no block of settings; it takes window, wait, memory"), ("{win: 3}", "residency has win; it takes window")],
)
def test_residency_is_a_block_of_what_it_knows(residency: str, told: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=told):
        request_of(f"models:\n  - model: demo\nresidency: {residency}\n", tmp_path)


def test_flags_of_one_model_do_not_go_with_it(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"service \(models:\), and --model, --users does not"):
        request_of("models:\n  - model: demo\n", tmp_path, model="demo", users=3)


def test_other_commands_refuse_such_a_file(tmp_path: Path) -> None:
    file = tmp_path / "service.yaml"
    file.write_text(TWO)

    @click.command("eval")
    @deployment.config_option
    def command() -> None: ...

    with pytest.raises(UsageError, match=r"`qserve eval` takes one service of one chat model"):
        command.main(["--config", str(file)], standalone_mode=False)
