"""Which reward models go to vLLM's pooling runner; the others are refused with the reason."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from qserve.cli.up.command import command as up
from qserve.engines.vllm.reward.engine import ENGINE
from qserve.errors import UsageError
from qserve.reward.checkpoints import recognise
from qserve.reward.settings import RewardSettings
from tests.unit.reward.stored import HIDDEN, body, write_folder


def obstacle(path: Path, **settings: Any) -> str | None:
    return ENGINE.why_not_scored(recognise(path, RewardSettings(**settings)), RewardSettings(**settings))


def test_a_sequence_classifier_suits(tmp_path: Path) -> None:
    path = write_folder(tmp_path, body() | {"score.weight": (1, HIDDEN)})
    assert obstacle(path) is None
    assert obstacle(path, pooling="last") is None
    assert "reads a classifier at the last token, but --pooling mean" in str(obstacle(path, pooling="mean"))


def test_a_head_of_another_kind_does_not(tmp_path: Path) -> None:
    value = write_folder(tmp_path / "value", body() | {"v_head.summary.weight": (1, HIDDEN)})
    assert "would not score a value-head checkpoint" in str(obstacle(value))
    biased = write_folder(tmp_path / "biased", body() | {"score.weight": (1, HIDDEN), "score.bias": (1,)})
    assert "no bias" in str(obstacle(biased))


def test_up_refuses_before_anything_starts(tmp_path: Path) -> None:
    value = write_folder(tmp_path / "value", body() | {"v_head.summary.weight": (1, HIDDEN)})
    with pytest.raises(UsageError, match=r"^--reward-engine vllm: vLLM would not score a value-head"):
        up.main(
            ["--reward", str(value), "--reward-engine", "vllm", "--state-dir", str(tmp_path)], standalone_mode=False
        )
    with pytest.raises(UsageError, match=r"^--reward-engine: for a reward model"):
        up.main(["--model", "demo", "--reward-engine", "vllm"], standalone_mode=False)
