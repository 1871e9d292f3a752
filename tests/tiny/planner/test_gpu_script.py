"""bench/gpu.py without a card: every line but CUDA's own runs on the CPU, and without asking for it, it says so."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
# In every process: our own files import the standard library, torch, transformers, accelerate and what comes with them.
# A bare machine with a card has no more; bitsandbytes is optional there as well.
_HIDE = """
import builtins, sys
original, ours = builtins.__import__, ("qserve", "bench")
allowed = {*sys.stdlib_module_names, *ours, "torch", "transformers", "accelerate", "safetensors", "numpy", "tokenizers",
           "bitsandbytes"}

def guarded(name, globals=None, locals=None, fromlist=(), level=0):
    importer = (globals or {}).get("__name__") or ""
    if level == 0 and importer.split(".")[0] in (*ours, "__main__") and name.split(".")[0] not in allowed:
        raise ModuleNotFoundError(f"{importer} imports {name}, which a bare machine has not")
    return original(name, globals, locals, fromlist, level)

builtins.__import__ = guarded
for name in ("pynvml", "click", "pydantic", "starlette", "uvicorn", "uvloop", "rich", "aiohttp", "vllm", "sklearn"):
    sys.modules[name] = None
"""


def run(tmp_path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    (tmp_path / "sitecustomize.py").write_text(_HIDE)
    return subprocess.run(
        [sys.executable, "bench/gpu.py", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "PYTHONPATH": str(tmp_path), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
    )


def test_without_a_card_it_says_so(tmp_path: Path) -> None:
    done = run(tmp_path)
    assert done.returncode == 0
    assert "sees no card on this machine (" in done.stdout  # the reason is torch's: its build, or no driver
    assert "nothing was measured" in done.stdout


def test_every_step_runs_with_torch_and_transformers_alone(tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = run(tmp_path, "--device", "cpu", "--shapes", "tiny", "--out", str(out))
    assert done.returncode == 0, done.stdout + done.stderr
    (written,) = out.glob("gpu-*.json")
    result = json.loads(written.read_text())
    assert [row["ok"] for row in result["quality"]] == [True, True]
    same, _, half = result["offload"]
    assert same["ok"] is True
    assert same["places"] == ["cpu", "disk"]
    assert half["offloaded_bytes"] > 0
    for row in result["memory"]:
        assert row["memory"]["weights_bytes"] > 0
        assert {speed["streams"] for speed in row["speed"]} == {1, 4}
    assert "## Memory, planned / measured" in written.with_suffix(".md").read_text()
