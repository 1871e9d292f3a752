"""`qserve plan` and `qserve models` as a user and a script meet them: exit status, JSON, messages without traceback."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from qserve.cli.main import main
from qserve.core.hardware import Hardware
from qserve.units import GIB

# docs: the fields that scripts may count on.
CONTRACT: dict[str, set[str]] = {
    "model": {"id", "architecture", "parameters"},
    "quant": {"scheme", "checkpoint"},
    "workload": {"max_model_len", "max_num_seqs", "max_num_batched_tokens"},
    "placement": {
        "tensor_parallel_size",
        "pipeline_parallel_size",
        "device_map",
        "gpu_memory_utilization",
        "kv_cache_memory_bytes",
    },
}
DEVICE = {
    "name",
    "total_bytes",
    "weights_bytes",
    "kv_cache_bytes",
    "activations_bytes",
    "cuda_graphs_bytes",
    "runtime_bytes",
    "free_bytes",
}
TOP = {
    "engine",
    "engine_version",
    "dtype",
    "kv_cache_dtype",
    "devices",
    "kv_cache_tokens",
    "max_concurrency",
    "fits",
    "why_not",
    "suggestions",
}


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))


def run(command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    monkeypatch.setattr("sys.argv", shlex.split(command))
    with pytest.raises(SystemExit) as stop:
        main()
    output = capsys.readouterr()
    return int(stop.value.code or 0), output.out, output.err


def test_json_holds_the_contract(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    command = "qserve plan --model Qwen/Qwen32B --quant 4bit --gpu rtx-4090 --json"
    status, out, _ = run(command, monkeypatch, capsys)
    plan: dict[str, Any] = json.loads(out)
    assert status == 0
    assert set(plan) >= TOP | set(CONTRACT)
    for part, fields in CONTRACT.items():
        assert set(plan[part]) >= fields
    assert set(plan["devices"][0]) >= DEVICE
    assert plan["model"]["id"] == "Qwen/Qwen3-32B"
    assert any("Qwen/Qwen32B is no hub id" in note for note in plan["notes"])


def test_what_does_not_fit_is_status_3_and_its_ways_out_work(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # RAM that nobody else takes or gives back between the refusal and its suggestions.
    machine = Hardware((), 64 * GIB, 40 * GIB, 16, disk_free_bytes=500 * GIB)
    monkeypatch.setattr("qserve.detect.detect", lambda **_: machine)
    command = "qserve plan --model Qwen/Qwen32B --quant 4bit --gpu rtx-3060 --json"
    status, out, _ = run(command, monkeypatch, capsys)
    plan = json.loads(out)
    assert status == 3
    assert len(plan["suggestions"]) >= 3
    for way in plan["suggestions"]:
        status, _, err = run(way["command"], monkeypatch, capsys)
        assert status == 0, (way["command"], err)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--model ./nowhere", "there is no folder"),
        ("--model Qwen/Qwen3-33B", "did you mean "),
        ("--model Qwen/Qwen3-8B --gpu rtx-9999", "not a card"),
        ("--model Qwen/Qwen3-8B --quant 3bit", "auto | fp16 | bf16 | fp8 | int8 | 4bit"),
        ("--model Qwen/Qwen3-8B --prompt-len 100 --max-model-len 50", "--max-model-len"),
        ("--model Qwen/Qwen3-8B --gpu h100-sxm --engine-version new", "--engine-version"),
        ("", "no model is named; write it after the command: qserve plan Qwen/"),
    ],
)
def test_a_mistake_is_status_2_with_one_message(
    arguments: str, message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    status, _, err = run(f"qserve plan {arguments}", monkeypatch, capsys)
    assert status == 2
    assert message in err
    assert "Traceback" not in err


def test_the_table_names_terms_and_limits(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    command = "qserve plan --model Qwen/Qwen3-8B --gpu a100-80gb --explain"
    status, out, _ = run(command, monkeypatch, capsys)
    assert status == 0
    for word in ("fits", "weights", "KV cache", "activations", "max_num_seqs", "How ", "source:", "Good to know"):
        assert word in out


def test_chat_and_reward_print_one_object(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    command = "qserve plan --model Qwen/Qwen3-8B --reward Qwen/Qwen3-0.6B --gpu a100-40gb --json"
    status, out, _ = run(command, monkeypatch, capsys)
    both = json.loads(out)
    assert status == 0
    assert both["fits"]
    assert both["reward"]["devices"][0]["kv_cache_bytes"] == 0


def test_models_lists_sizes_and_aliases(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run("qserve models qwen3-32b --json", monkeypatch, capsys)
    (row,) = json.loads(out)
    assert status == 0
    assert row["parameters"] == 32_762_123_264
    assert row["aliases"] == ["Qwen/Qwen32B"]
    assert row["siblings"]["awq"] == "Qwen/Qwen3-32B-AWQ"
