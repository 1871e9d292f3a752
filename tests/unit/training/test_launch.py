"""What starts a run's processes, and in which environment."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from qserve.planner.training import TrainingRequest
from qserve.training.configuration.accelerate import accelerate_configuration
from qserve.training.job import DataSource, TrainingRun
from qserve.training.launch import environment, launcher


def run_on(device: str, num_processes: int) -> TrainingRun:
    return TrainingRun(
        TrainingRequest("sft"), "/model", DataSource("d.jsonl"), Path("/out"), device=device,
        num_processes=num_processes,
    )  # fmt: skip


def test_torchrun_starts_several_processes_on_a_cpu() -> None:
    words = launcher(run_on("cpu", 3), Path("a.yaml"))
    assert words == [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "3"]


@pytest.mark.parametrize(("device", "count"), [("cpu", 1), ("cuda", 1), ("cuda", 4)])
def test_accelerate_starts_all_others(device: str, count: int) -> None:
    words = launcher(run_on(device, count), Path("a.yaml"))
    assert words[1:] == ["-m", "accelerate.commands.launch", "--config_file", "a.yaml"]


def test_a_run_takes_the_first_cards() -> None:
    assert accelerate_configuration(run_on("cuda", 2))["gpu_ids"] == "0,1"
    assert "gpu_ids" not in accelerate_configuration(run_on("cpu", 1))


def test_the_heap_is_set_on_a_cpu_where_the_user_has_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MALLOC_MMAP_THRESHOLD_", raising=False)
    assert environment(run_on("cpu", 1))["MALLOC_MMAP_THRESHOLD_"] == str(2**20)
    assert "MALLOC_MMAP_THRESHOLD_" not in environment(run_on("cuda", 1))
    monkeypatch.setenv("MALLOC_MMAP_THRESHOLD_", "5")
    assert environment(run_on("cpu", 1))["MALLOC_MMAP_THRESHOLD_"] == "5"
