"""`qserve bench --compare-spec` over real vLLM on the CPU: drafts by n-grams, what of them was accepted, a verdict."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

from qserve.runs import RunStore
from tests.tiny.serving.served import QSERVE
from tests.tiny.serving.vllm_processes import NOT_COMPILED

UP = "--max-model-len 512 --max-num-seqs 2 --enforce-eager --kv-cache-memory-bytes 64MiB"


def test_drafts_are_served_measured_and_kept(tmp_path: Path) -> None:
    """Prompts that repeat themselves, so that something is drafted; the demo's answers decide what is accepted."""
    prompts = tmp_path / "prompts.jsonl"
    lines = [{"prompt": f"Sort these numbers: {' '.join(['3 1 2'] * 8)} {number}"} for number in range(4)]
    prompts.write_text("".join(json.dumps(one) + "\n" for one in lines))
    command = [str(QSERVE), "bench", "--compare-spec", "--model", "demo", "--concurrency", "1", "--num-prompts", "4"]
    command += [
        "--dataset",
        str(prompts),
        "--output-len",
        "12",
        "--ignore-eos",
        "--num-warmups",
        "0",
        "--up-args",
        UP,
        "--json",
    ]
    environment = {**os.environ, **NOT_COMPILED, "QSERVE_STATE_DIR": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False, timeout=280)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    plain, drafted = found["settings"]
    assert (plain["name"], plain["flags"]) == ("no drafts", [])
    assert (drafted["name"], drafted["flags"]) == ("n-grams, 3", ["--num-ngram-tokens", "3"])
    for setting in (plain, drafted):
        assert [(one["input_len"], one["streams"]) for one in setting["loads"]] == [(None, 1)]
        assert all(one["tokens_per_s"] > 0 for one in setting["loads"])
    assert not any(one["num_drafted"] for one in plain["loads"])
    assert sum(one["num_drafted"] for one in drafted["loads"]) > 0
    assert all(one["num_accepted"] <= one["num_drafted"] <= 3 * one["num_drafts"] for one in drafted["loads"])
    assert found["verdict"]["next_command"].startswith("qserve up --model demo --engine vllm")
    store = RunStore.open(tmp_path / "qserve")
    assert [len(store.benches(one["run"])) for one in (plain, drafted)] == [1, 1], "each load is kept beside its run"
    assert {run.started_by for run in store.runs()} == {"bench"}
