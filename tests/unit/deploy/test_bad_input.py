"""qserve deploy: one sentence for what no file can hold, with what would work."""

from __future__ import annotations

import pytest

from qserve.cli.main import cli
from qserve.errors import DoesNotFit, QserveError, UsageError

DEMO = ["--model", "demo", "--gpu", "none"]


def refused(kind, *words):
    with pytest.raises(kind) as error:
        cli.main(["deploy", *words], standalone_mode=False)
    return str(error.value)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["k8s"], "give --config FILE"),
        (["k8s", "--config", "nowhere.yaml"], "no such file"),
        (["k8s", *DEMO, "--api-key", "secret"], "--api-key would be in the file"),
        (["compose", *DEMO, "--port", "0"], "--port 0"),
        (["compose", *DEMO, "--ready-file", "x"], "--ready-file"),
        (["compose", *DEMO, "--namespace", "a", "--user", "b"], "--user, --namespace: not for compose"),
        (["systemd", *DEMO, "--image", "x"], "--image: not for systemd"),
        (["systemd", *DEMO, "--user", "root"], "name another user with --user"),
        (["k8s", *DEMO, "--name", "Not_A_Name"], "--name 'Not_A_Name'"),
        (["k8s", *DEMO, "--min-pods", "3", "--max-pods", "2"], "--min-pods 3 is more than --max-pods 2"),
        (
            ["k8s", "--model", "Qwen/Qwen3-8B", "--gpu", "l40s:2", "--replicas", "3", "--tensor-parallel-size", "2"],
            "--replicas 3 times 2 cards each are more than the 2",
        ),
    ],
)
def test_it_is_said_in_one_sentence(words, said):
    message = refused(UsageError, *words)
    assert said in message
    assert "\n" not in message


def test_a_plan_that_does_not_fit_is_no_file(capsys):
    message = refused(DoesNotFit, "k8s", "--model", "Qwen/Qwen3-32B", "--gpu", "rtx-4090", "--quant", "bf16")
    assert "What would fit" in message
    assert capsys.readouterr().out == ""


def test_replicas_for_which_the_cards_are_too_small_are_no_file():
    call = ["k8s", "--model", "Qwen/Qwen3-8B", "--gpu", "rtx-4090", "--quant", "bf16", "--replicas", "3"]
    assert "--replicas 3: each replica has" in refused(DoesNotFit, *call)


def test_a_file_that_is_there_stays(tmp_path, capsys):
    file = tmp_path / "compose.yaml"
    cli.main(["deploy", "compose", *DEMO, "--out", str(file)], standalone_mode=False)
    written = file.read_text()
    assert written.startswith("# Written by: qserve deploy compose --model=demo --gpu=none")
    assert capsys.readouterr().out == ""
    assert "already exists" in refused(UsageError, "compose", *DEMO, "--out", str(file))
    assert file.read_text() == written
    assert "can't be written" in refused(QserveError, "compose", *DEMO, "--out", str(tmp_path / "no" / "x.yaml"))
