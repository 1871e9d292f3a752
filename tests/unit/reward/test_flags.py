"""Flags that nothing would read are refused by their names, before anything is planned or loaded."""

from __future__ import annotations

from pathlib import Path

import click
import pytest

from qserve.cli.reward.command import command as reward
from qserve.cli.reward.eval_reward import command as eval_reward
from qserve.cli.up.command import command as up
from qserve.errors import BrokenCheckpoint, ModelNotFound, UsageError
from qserve.reward.checkpoints import recognise
from qserve.reward.settings import RewardSettings
from tests.unit.reward.stored import HIDDEN, body, write_folder


def call(command: click.Command, *arguments: str) -> None:
    command.main(list(arguments), standalone_mode=False)


@pytest.mark.parametrize(
    "flags",
    [
        ("--pooling", "last"),
        ("--reward-quant", "int8"),
        ("--served-reward-name", "x"),
        ("--max-length", "9"),
        ("--base", "x"),
        ("--truncate", "refuse"),
    ],
)
def test_a_reward_flag_without_a_reward_model(flags: tuple[str, ...]) -> None:
    with pytest.raises(UsageError, match=rf"^{flags[0]}: for a reward model.*--reward"):
        call(up, "--model", "demo", *flags)


@pytest.mark.parametrize(
    "flags",
    [
        ("--served-model-name", "x"),
        ("--load-format", "dummy"),
        ("--max-num-seqs", "2"),
        ("--engine", "transformers"),
        ("--verify-quant",),
        ("--engine-args", "--seed 1"),
    ],
)
def test_a_chat_flag_without_a_chat_model(flags: tuple[str, ...]) -> None:
    with pytest.raises(UsageError, match=rf"^{flags[0]}: for a chat model.*--model"):
        call(up, "--reward", "demo", *flags)


def test_a_flag_in_a_file_counts_as_given(tmp_path: Path) -> None:
    (tmp_path / "d.yaml").write_text("model: demo\nreward_quant: int8\n")
    with pytest.raises(UsageError, match=r"^--reward-quant: for a reward model"):
        call(up, "--config", str(tmp_path / "d.yaml"))


def test_a_server_takes_no_flags_of_loading_and_a_model_none_of_a_server(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text("{}")
    file = str(tmp_path / "x.jsonl")
    with pytest.raises(UsageError, match=r"^--pooling, --quant: a server loaded its model already"):
        call(eval_reward, file, "--url", "http://127.0.0.1:9", "--quant", "int8", "--pooling", "last")
    with pytest.raises(UsageError, match=r"^--model: for a server; name one with --url"):
        call(eval_reward, file, "--model", "x")
    with pytest.raises(UsageError, match=r"^--quants: a server loaded its model already"):
        call(reward, "check", "--url", "http://127.0.0.1:9", "--quants", "bf16,int8")
    with pytest.raises(UsageError, match=r"^--api-key: for a server"):
        call(reward, "check", "--api-key", "x")


def test_a_position_that_no_pooling_reads() -> None:
    with pytest.raises(UsageError, match=r"--position -2 needs --pooling position"):
        RewardSettings(pooling="last", position=-2)
    assert RewardSettings(pooling="position", position=-2).position == -2


def test_a_base_for_a_whole_checkpoint(tmp_path: Path) -> None:
    whole = write_folder(tmp_path / "whole", body() | {"score.weight": (1, HIDDEN)})
    with pytest.raises(ModelNotFound, match=r"--base .*nowhere.* is not a folder"):
        recognise(whole, RewardSettings(base=str(tmp_path / "nowhere")))
    with pytest.raises(UsageError, match=r"is a whole checkpoint, with config and tokenizer, and needs no base"):
        recognise(whole, RewardSettings(base=str(tmp_path)))


def test_words_that_another_format_reads(tmp_path: Path) -> None:
    plain = write_folder(tmp_path / "plain", body() | {"score.weight": (1, HIDDEN)})
    with pytest.raises(UsageError, match=r"--step-token <s>: .*is not a process reward model"):
        recognise(plain, RewardSettings(step_token="<s>"))
    head = {
        "score.0.weight": (HIDDEN, HIDDEN),
        "score.0.bias": (HIDDEN,),
        "score.2.weight": (2, HIDDEN),
        "score.2.bias": (2,),
    }
    process = write_folder(
        tmp_path / "process", body() | head, architectures=["Qwen2ForProcessRewardModel"], model_type="qwen2"
    )
    with pytest.raises(UsageError, match=r"--pooling last: .*read at its step token"):
        recognise(process, RewardSettings(pooling="last"))
    with pytest.raises(BrokenCheckpoint, match=r"no token '<s>'"):
        recognise(process, RewardSettings(step_token="<s>"))
