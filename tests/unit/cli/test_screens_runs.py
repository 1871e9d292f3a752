"""What `qserve runs` prints at 80 columns, of runs that are the same every time."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from qserve.cli.runs.compare import compared, show_compared
from qserve.cli.runs.show import show_empty, show_list, show_residuals, show_run
from qserve.planner.calibration import Residual
from qserve.runs.records import (
    MemorySample,
    Percentiles,
    RequestSummary,
    StoredDocument,
    StoredEvent,
    StoredRun,
    StoredWorker,
    Traffic,
    WorkerTraffic,
)
from tests.golden.screens import WIDTH, check_screen

BEGAN = 1_795_000_000.0
PLAN = {
    "engine": "vllm",
    "engine_version": "0.32.0",
    "quant": {"scheme": "awq"},
    "kv_cache_tokens": 8688,
    "workload": {"max_model_len": 8688, "max_num_seqs": 64},
    "devices": [
        {
            "weights_bytes": 19_590_000_000,
            "kv_cache_bytes": 2_280_582_144,
            "activations_bytes": 1_589_000_000,
            "cuda_graphs_bytes": 351_900_000,
            "runtime_bytes": 732_300_000,
        }
    ],
}
PHASES = {
    "starting the process": 0.4,
    "importing torch and vllm": 11.2,
    "loading weights": 21.7,
    "capturing graphs": 14.0,
}
CHAT = StoredWorker("chat", ("Qwen/Qwen3-32B-AWQ",), PLAN, (PLAN,), PHASES, 1)
REWARD = StoredWorker("reward", ("my-reward-model",), {**PLAN, "quant": {"scheme": "bf16"}}, (), {}, 0)
CARD = {"devices": [{"name": "NVIDIA GeForce RTX 4090"}], "cpu": "AMD EPYC", "cpu_cores": 16}
VERSIONS = {"qserve": "0.1.0", "torch": "2.13.0", "transformers": "5.19.0", "vllm": "0.32.0"}


def run(name: str, lasted_s: float, requests: int, *workers: StoredWorker, **more: Any) -> StoredRun:
    command = ("qserve", "up", "--model", "Qwen/Qwen3-32B", "--quant", "4bit", "--reward", "./my-reward-model")
    values: dict[str, Any] = {
        "exit_status": 0,
        "state": "ended",
        "command": command,
        "num_errors": 0,
        "num_lost": 0,
        "started_by": "",
        **more,
    }
    return StoredRun(
        id=name,
        started_unix_s=BEGAN,
        last_seen_unix_s=BEGAN + lasted_s,
        ended_unix_s=BEGAN + lasted_s,
        versions=VERSIONS,
        hardware=CARD,
        folder=Path("/home/you/.local/state/qserve/runs") / name,
        url="http://127.0.0.1:8000",
        num_requests=requests,
        workers=workers,
        **values,
    )


RUNS = (
    run("20261128-191456-3960", 13, 67, CHAT, started_by="compare"),
    run("20261128-190828-train-557a", 359, 0, started_by="train", command=("qserve", "train", "reward")),
    run("20261128-185103-10941", 62_000, 16_356, CHAT, REWARD, num_errors=93, state="died", exit_status=None),
    run("20261127-080000-77", 5, 0, exit_status=3),
)
LATENCY = {
    "queued": Percentiles(100, 1, 0, 0.07, 0.12, 305, 375),
    "ttft": Percentiles(100, 1, 0, 9.97, 77.1, 7110, 8220),
    "tpot": Percentiles(100, 1, 0, 21.4, 33.5, 40, 41),
    "e2e": Percentiles(100, 1, 0, 7241.6, 7579.1, 91_000, 150_000),
}
SUMMARY = RequestSummary(
    16_356, 93, 4, BEGAN, BEGAN, 16_356_514, 902_611, {200: 16_263, 502: 93}, {"worker_died": 93}, LATENCY
)
TERMS = {
    "weights_bytes": 19_600_000_000,
    "kv_cache_bytes": 2_280_582_144,
    "activations_bytes": 1_500_000_000,
    "kv_cache_tokens": 8688,
}
FAULT = {"reason": "the worker was killed by SIGKILL (the kernel does this when memory runs out)"}


def store(name: str) -> Any:
    """Of what `show_run` reads."""
    kept = (
        StoredDocument(1, "eval", BEGAN, name, "offline", {}),
        StoredDocument(2, "bench", BEGAN, name, "8 at once", {}),
    )
    return SimpleNamespace(
        memory=lambda _: (MemorySample(BEGAN, "chat", "ready", TERMS),),
        traffic=lambda _: Traffic((), (WorkerTraffic("chat", 10, SUMMARY, (), {}),)),
        events=lambda _: (StoredEvent(BEGAN + 60, "chat", "restart", FAULT),),
        evals=lambda _: kept[:1],
        benches=lambda _: kept[1:],
        comparisons=lambda _: (),
        trainings=lambda _: (),
    )


@pytest.fixture(autouse=True)
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("COLUMNS", str(WIDTH))
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def test_the_list(capsys: pytest.CaptureFixture[str]) -> None:
    show_list(RUNS, Path("/home/you/.local/state/qserve/runs.sqlite3"))
    check_screen("runs-list", capsys.readouterr().out)


def test_a_list_of_long_names_breaks_none(capsys: pytest.CaptureFixture[str]) -> None:
    long = replace(CHAT, models=("Qwen/Qwen3-Coder-30B-A3B-Instruct-compressed-tensors",))
    show_list((replace(RUNS[2], workers=(long, REWARD)), RUNS[0]), Path("/state/qserve/runs.sqlite3"))
    said = capsys.readouterr().out
    check_screen("runs-list-long-names", said)


def test_no_runs(capsys: pytest.CaptureFixture[str]) -> None:
    show_empty()
    check_screen("runs-empty", capsys.readouterr().out)


def test_one_run(capsys: pytest.CaptureFixture[str]) -> None:
    show_run(store(RUNS[2].id), RUNS[2])
    check_screen("runs-show", capsys.readouterr().out)


def test_two_runs(capsys: pytest.CaptureFixture[str]) -> None:
    show_compared(compared(store(RUNS[2].id), RUNS[2], RUNS[0]))
    check_screen("runs-compare", capsys.readouterr().out)


def test_residuals(capsys: pytest.CaptureFixture[str]) -> None:
    about = (
        "vllm",
        "0.32.0",
        "NVIDIA GeForce RTX 4090",
        True,
        "Qwen3ForCausalLM 32762123264 parameters, awq stored, bfloat16, kv auto, 1 devices",
        "64 sequences, 2048 tokens",
    )
    found = [
        Residual(*about, term, planned, measured, name)
        for name, terms in (
            ("a", (("weights", 19_590_000_000, 19_580_000_000),)),
            ("20261128-185103-10941", (("weights", 19_590_000_000, 19_600_000_000), ("kv_cache_tokens", 8688, 8672))),
        )
        for term, planned, measured in terms
    ]
    show_residuals(found)
    check_screen("runs-residuals", capsys.readouterr().out)
