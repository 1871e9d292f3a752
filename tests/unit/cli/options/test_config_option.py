"""--config FILE: the same options from a file; flags win; what no option takes is refused by name."""

from __future__ import annotations

import json

import click
import pytest

from qserve.cli.main import cli
from qserve.cli.options import deployment
from qserve.cli.plan.command import command as plan
from qserve.errors import UsageError
from qserve.units import GIB


@pytest.fixture(autouse=True)
def _offline(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


@pytest.fixture
def written(tmp_path):
    def write(text):
        path = tmp_path / "service.yaml"
        path.write_text(text)
        return str(path)

    return write


def planned(capsys, *arguments):
    cli.main(["plan", *arguments, "--json"], standalone_mode=False)
    output = capsys.readouterr()
    return json.loads(output.out), output.err


def values_of(*arguments):
    """What the options of `qserve plan` are after parsing."""
    return plan.make_context("plan", list(arguments)).params


def test_a_file_is_worth_its_flags(written):
    path = written(
        "model: demo\nquant: bf16\nmax_model_len: 1024\ngpu: none\nkv_cache_memory_bytes: 2GiB\n"
        "enforce_eager: true\nenable_prefix_caching: false\ngpu_memory_utilization: 0.5\n"
    )
    flags = (
        "--model demo --quant bf16 --max-model-len 1024 --gpu none --kv-cache-memory-bytes 2GiB --enforce-eager "
        "--no-enable-prefix-caching --gpu-memory-utilization 0.5"
    )
    assert values_of("--config", path) == values_of(*flags.split())
    assert values_of("--config", path)["kv_cache_memory_bytes"] == 2 * GIB


@pytest.mark.parametrize("order", ["first", "last"])
def test_flags_win(order, written):
    config, flags = ["--config", written("model: demo\nmax_model_len: 1024\n")], ["--max-model-len", "512"]
    assert values_of(*(config + flags if order == "first" else flags + config))["max_model_len"] == 512


def test_the_plan_is_for_the_cards_of_the_file(capsys):
    result, said = planned(capsys, "--config", "qwen3-32b-2x24gb")
    assert [device["name"] for device in result["devices"]] == ["NVIDIA GeForce RTX 4090"] * 2
    assert said == ""


def test_what_the_plan_does_not_come_to_is_said_beside_it(capsys):
    result, said = planned(capsys, "--config", "qwen3-32b-1x24gb", "--max-model-len", "4096")
    assert result["workload"]["max_model_len"] == 4096
    assert "qwen3-32b-1x24gb.yaml: max_model_len is 4096, expected at least 8192" in said


def test_the_command_that_serves_it_names_the_file_as_it_was_named(capsys, written):
    own = written("model: demo\n")
    for config in ("qwen3-32b-2x24gb", own):
        assert planned(capsys, "--config", config)[0]["next_command"] == f"qserve up --config {config}"


def test_several_values_of_one_option(written):
    assert deployment.load(written("model: demo\nserved_model_name: [a, b]\n")).options["served_model_name"] == (
        "a",
        "b",
    )
    assert deployment.load(written("model: demo\nserved_model_name: ab\n")).options["served_model_name"] == ("ab",)


def test_a_service_takes_the_cards_that_are_there_and_no_setting_that_it_lacks(written):
    found = {}

    @click.command("up")
    @deployment.config_option
    @click.option("--model")
    @click.option("--gpu")
    def up(**values):
        found.update(values)

    up.main(["--config", written("model: demo\ngpu: rtx-4090\n")], standalone_mode=False)
    assert found == {"model": "demo", "gpu": None}
    up.main(["--config", written("model: demo\ngpu: none\n")], standalone_mode=False)
    assert found == {"model": "demo", "gpu": "none"}
    with pytest.raises(UsageError, match="`qserve up` has no reward"):
        up.main(["--config", written("model: demo\nreward: ./rm\n")], standalone_mode=False)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("model: demo\nmax_model_length: 8192\n", "max_model_length is not a setting. Near matches: max_model_len"),
        ("model: demo\nmax-model-len: 8192\n", "max-model-len is not a setting. Near matches: max_model_len"),
        ("model: demo\nas_json: true\n", "as_json is not a setting"),
        ("model: demo\nmax_model_len: many\n", "max_model_len is 'many'"),
        ("model: demo\nmax_model_len: 0\n", "max_model_len is 0"),
        ("model: demo\nmax_model_len: true\n", "max_model_len is True, but takes a number or a text"),
        ("model: demo\nmax_model_len:\n", "leave the line out for the default"),
        ("model: demo\nmax_model_len: [1, 2]\n", "max_model_len is a list"),
        ("model: demo\nenforce_eager: 1\n", "takes true or false"),
        ("model: demo\nengine: vlm\n", "engine is 'vlm'"),
        ("model: me/x\nrevision: 1.10\n", "revision is 1.10, which YAML reads as the float 1.1"),
        ("model: me/x\nrevision: 1\n", "write it in quotes: '1'"),
        ("model: me/x\nrevision: 0123456\n", "write it in quotes: '0123456'"),
        ("model: me/x\nrevision: 2026-01-02\n", "write it in quotes: '2026-01-02'"),
        ("model: me/x\nrevision: on\n", "write it in quotes: 'on'"),
        ("model: me/x\nrevision: [v1]\n", "revision is a list"),
        ("model: me/x\nrevision:\n", "leave the line out for the default"),
        ("reward: me/x\nreward_revision: 7\n", "reward_revision is 7, which YAML reads as the int 7"),
        ("model: me/x\nserved_model_name: 3.10\n", "write it in quotes: '3.10'"),
        ("model: me/x\nserved_model_name: [a, 3.10]\n", "write it in quotes: '3.10'"),
        ("model: demo\nmodel: other\n", "sets model twice"),
        ("model: demo\napi_key: secret\n", "or set QSERVE_API_KEY"),
        ("model: demo\nexpect: {tokens: 3}\n", "expect has no tokens"),
        ("model: demo\nexpect: {max_model_len: '3'}\n", "expect.max_model_len is '3'"),
        ("model: demo\nexpect: all\n", "expect takes an indented block of settings"),
        ("model: {demo\n", "can't be read as YAML"),
        ("", "has no settings"),
        ("- model\n", "has no settings"),
    ],
)
def test_a_mistake_in_the_file_is_named(text, message, written):
    with pytest.raises(UsageError) as raised:
        deployment.load(written(text))
    assert message in str(raised.value)
    assert "service.yaml" in str(raised.value)


def test_a_text_of_digits_is_one_in_quotes(written):
    text = "model: me/x\nrevision: '1.10'\nserved_model_name: [a, 7]\nweights: 1\n"
    values = deployment.load(written(text)).options
    assert (values["revision"], values["served_model_name"], values["weights"]) == ("1.10", ("a", "7"), "1")


def test_a_name_that_is_none_is_answered_with_those_close_to_it():
    with pytest.raises(UsageError, match=r"close to it: .*qwen3-32b-1x24gb"):
        deployment.load("qwen3-32b-24gb")


def test_a_folder_of_ones_own_holds_deployments_too(tmp_path, monkeypatch):
    (tmp_path / "deployments").mkdir()
    (tmp_path / "deployments" / "mine.yaml").write_text("model: demo\n")
    monkeypatch.setenv("QSERVE_CONFIGS", str(tmp_path))
    assert deployment.load("mine").options == {"model": "demo"}
    assert "demo-cpu" in deployment.bundled()
