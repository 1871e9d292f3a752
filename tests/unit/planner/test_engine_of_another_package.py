"""An engine that lies in a package of its own is planned like qserve's own; one that nobody registered is an error."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from qserve.errors import UsageError
from qserve.planner.engine import engine_named, engine_names

ECHO = Path(__file__).parents[2] / "echo_engine"
ASKED = "--model Qwen/Qwen3-0.6B --gpu rtx-4090"


def plan(arguments: str, engines: Path | None = ECHO) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(engines or "")}
    command = [sys.executable, "-m", "qserve", "plan", *arguments.split()]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60, check=False)


def test_it_is_planned_by_its_name() -> None:
    done = plan(f"{ASKED} --engine echo --json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    device = found["devices"][0]
    assert (found["engine"], found["engine_version"], found["fits"]) == ("echo", "1.0", True)
    assert device["weights_bytes"] + device["kv_cache_bytes"] + device["runtime_bytes"] == sum(
        term["num_bytes"] for term in device["terms"]
    )


def test_its_terms_are_explained_and_its_options_read() -> None:
    done = plan(f"{ASKED} --engine echo --shout --explain")
    assert done.returncode == 0, done.stderr
    assert "Python: 64 MiB" in done.stdout
    assert json.loads(plan(f"{ASKED} --engine echo --shout --json").stdout)["engine_args"] == ["--shout"]


def test_what_does_not_fit_has_ways_out() -> None:
    done = plan("--model Qwen/Qwen3-32B --gpu rtx-4090 --engine echo --json")
    found = json.loads(done.stdout)
    assert (done.returncode, found["fits"]) == (3, False)
    assert any("GB" in way["change"] or "one " in way["change"] for way in found["suggestions"])


def test_its_own_refusals_and_options_of_others_are_errors() -> None:
    assert "echo has no log-probabilities" in plan(f"{ASKED} --engine echo --prompt-logprobs").stderr
    assert (
        "--enforce-eager: vLLM's alone, and this plan is for echo"
        in plan(f"{ASKED} --engine echo --enforce-eager").stderr
    )


def test_an_engine_that_nobody_registered_is_an_error_that_names_those_that_are() -> None:
    done = plan(f"{ASKED} --engine echo", engines=None)
    assert done.returncode == 2
    assert "'vllm', 'transformers'" in done.stderr
    with pytest.raises(UsageError, match=r"'nope' is not a registered engine; it takes vllm, transformers"):
        engine_named("nope")
    assert engine_names()[:2] == ("vllm", "transformers")


@pytest.mark.parametrize(
    ("flag", "why"),
    [
        ("--context 60000", "--context 60000: Qwen/Qwen3-0.6B has 40960 positions on echo 1.0; give that or less"),
        ("--max-model-len 60000", "has 40960 positions on echo 1.0; give that or less"),
        ("--hf-overrides {}", "--hf-overrides: echo does not read it; leave it out"),
    ],
)
def test_positions_that_it_does_not_serve_are_refused(flag: str, why: str) -> None:
    """Only an engine that says so is told of other keys of config.json."""
    done = plan(f"{ASKED} --engine echo {flag}")
    assert (done.returncode, done.stderr.strip().endswith(why)) == (2, True), done.stderr
    assert plan(f"{ASKED} --engine echo --context 30000").returncode == 0
