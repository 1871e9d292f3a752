"""What starts a run's processes, and in which environment."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from qserve.planner.training import TrainingRequest
from qserve.training.configuration.accelerate import accelerate_configuration
from qserve.training.heap import TIGHT_HEAP
from qserve.training.job import DataSource, TrainingRun
from qserve.training.launch import environment, launcher


def run_on(device: str, num_processes: int, **fields: Any) -> TrainingRun:
    return TrainingRun(
        TrainingRequest("sft", **fields),
        "/model",
        DataSource("d.jsonl"),
        Path("/out"),
        device=device,
        num_processes=num_processes,
    )


def test_torchrun_starts_several_processes_on_a_cpu() -> None:
    words = launcher(run_on("cpu", 3), Path("a.yaml"))
    assert words == [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "3"]


SHARDED = [{"zero_stage": 3}, {"fsdp": True}]


@pytest.mark.parametrize(
    ("device", "count", "fields"),
    [("cpu", 1, {}), ("cuda", 1, {}), ("cuda", 4, {}), *(("cpu", 2, fields) for fields in SHARDED)],
)
def test_accelerate_starts_all_others(device: str, count: int, fields: dict[str, Any]) -> None:
    words = launcher(run_on(device, count, **fields), Path("a.yaml"))
    assert words[1:] == ["-m", "accelerate.commands.launch", "--config_file", "a.yaml"]


@pytest.mark.parametrize("fields", SHARDED)
def test_processes_on_a_cpu_that_shard_see_no_card(fields: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    assert environment(run_on("cpu", 2, **fields))["CUDA_VISIBLE_DEVICES"] == ""
    assert environment(run_on("cpu", 2))["CUDA_VISIBLE_DEVICES"] == "0"
    assert environment(run_on("cuda", 2, **fields))["CUDA_VISIBLE_DEVICES"] == "0"


def test_processes_on_a_cpu_share_the_cores_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qserve.training.launch.count_physical_cores", lambda: 8)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert environment(run_on("cpu", 2))["OMP_NUM_THREADS"] == "4"
    assert environment(run_on("cpu", 16))["OMP_NUM_THREADS"] == "1"
    assert "OMP_NUM_THREADS" not in environment(run_on("cpu", 1))
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert environment(run_on("cpu", 2))["OMP_NUM_THREADS"] == "3"


def test_a_run_takes_the_first_cards() -> None:
    assert accelerate_configuration(run_on("cuda", 2))["gpu_ids"] == "0,1"
    assert "gpu_ids" not in accelerate_configuration(run_on("cpu", 1))


def test_the_heap_is_tight_on_a_cpu_whose_plan_needs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "MALLOC_MMAP_THRESHOLD_"
    monkeypatch.delenv(name, raising=False)
    wide, tight = ({"devices": [{"used_bytes": used, "total_bytes": 100}]} for used in (79, 81))
    assert environment(replace(run_on("cpu", 1), plan=tight))[name] == str(2**16)
    assert name not in environment(replace(run_on("cpu", 1), plan=wide)), "it costs time"
    assert name not in environment(replace(run_on("cuda", 1), plan=tight))
    monkeypatch.setenv(name, "5")
    assert environment(replace(run_on("cpu", 1), plan=tight))[name] == "5"


BLOCKS = """
import ctypes, pathlib
libc, size, blocks = ctypes.CDLL(None), 256 << 10, []
def resident_kib():
    lines = pathlib.Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))
for _ in range(200):
    block = ctypes.c_void_p()
    assert libc.posix_memalign(ctypes.byref(block), 64, size) == 0
    ctypes.memset(block, 1, size)
    blocks.append(block)
full = resident_kib()
for block in blocks[::2]:
    libc.free(block)
print(full - resident_kib())
"""


def test_a_tight_heap_gives_holes_of_a_quarter_mib_back() -> None:
    """Keys and values of short sequences: smaller than a MiB, and as many as there are layers."""
    told = subprocess.run([sys.executable, "-c", BLOCKS], env=TIGHT_HEAP, capture_output=True, text=True, timeout=60)
    assert int(told.stdout) > 0.9 * 100 * 256, told.stderr
