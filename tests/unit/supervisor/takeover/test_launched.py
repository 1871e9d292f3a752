"""What the workers of two services are started from: only what matters to a worker may differ nowhere."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from qserve.supervisor.takeover.launched import Launched, asked_of, differences, environment_of, files_of

OLD = Launched({"model": "demo", "max_model_len": "256"}, {"qserve": "1.0", "torch": "2.11"}, {"OMP_NUM_THREADS": "a"})


def test_the_same_start_differs_in_nothing() -> None:
    assert differences(OLD, OLD) == []


@pytest.mark.parametrize(
    ("new", "told"),
    [
        (
            Launched({"model": "demo", "max_model_len": "128"}, OLD.versions, OLD.environment),
            "--max-model-len: 256 there, 128 here",
        ),
        (Launched({"model": "demo"}, OLD.versions, OLD.environment), "--max-model-len: 256 there, not given here"),
        (
            Launched(OLD.asked, {**OLD.versions, "vllm": "0.32.0"}, OLD.environment),
            "vllm: not given there, 0.32.0 here",
        ),
        (Launched(OLD.asked, {**OLD.versions, "qserve": "1.1"}, OLD.environment), "qserve: 1.0 there, 1.1 here"),
        (Launched(OLD.asked, OLD.versions, {}), "the environment variable OMP_NUM_THREADS has another value"),
    ],
)
def test_each_difference_is_told_by_its_name(new: Launched, told: str) -> None:
    assert differences(OLD, new) == [told]


def test_options_are_compared_as_they_are_meant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "checkpoint").mkdir()
    monkeypatch.chdir(tmp_path)
    values = {"model": "checkpoint", "names": ("a", "b"), "quant": None, "port": 8000, "adapters": (), "strict": False}
    asked = asked_of(values, {"port"})
    assert asked == {"model": str(tmp_path / "checkpoint"), "names": "a b", "strict": "False"}


def test_of_the_environment_only_what_workers_read_counts_and_no_value_is_told() -> None:
    told = environment_of(
        {"CUDA_VISIBLE_DEVICES": "0", "HF_TOKEN": "secret", "HOME": "/home/me", "QSERVE_API_KEY": "k"}
    )
    assert sorted(told) == ["CUDA_VISIBLE_DEVICES", "HF_TOKEN"]
    assert "secret" not in str(told)
    assert told != environment_of({"CUDA_VISIBLE_DEVICES": "1", "HF_TOKEN": "secret"})


def test_a_checkpoint_that_was_written_anew_is_another_one(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    file.write_bytes(b"1234")
    before = files_of(tmp_path)
    assert files_of(tmp_path) == before
    os.utime(file, (1, 1))
    assert files_of(tmp_path) != before
