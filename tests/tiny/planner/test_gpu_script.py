"""bench/gpu.py without a card: every line but CUDA's own runs on the CPU, and without asking for it, it says so."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from bench.gpu_steps.loaded import work_of
from bench.gpu_steps.order import GROUPS
from bench.kit.contents import ARCHIVES
from qserve.core.hardware import Hardware, parse_gpu
from qserve.hub import resolve
from qserve.planner import make_plan, plan_request
from qserve.units import GIB

ROOT = Path(__file__).parents[3]
# Of a machine with torch and transformers and without a network, as bench/kit/contents.py takes it to be: the modules
# that our own files may import there, beside those of the kit's first part.
_COMMON = (
    "torch",
    "transformers",
    "accelerate",
    "safetensors",
    "numpy",
    "tokenizers",
    "huggingface_hub",
    "triton",
    "aiohttp",
    "click",
    "httpx",
    "jinja2",
    "markupsafe",
    "prometheus_client",
    "psutil",
    "pynvml",
    "rich",
    "uvloop",
    "yaml",
)
_KIT = tuple(name.split("==")[0].replace("-", "_") for name in ARCHIVES[0].packages)
_MODULES = {"python_multipart": "multipart"}
# In every process: our own files import nothing else, and what the libraries look for is not there.
_HIDE = f"""
import builtins, sys
original, ours = builtins.__import__, ("qserve", "bench")
allowed = {{*sys.stdlib_module_names, *ours, *{(*_COMMON, *_KIT, *_MODULES.values())!r}}}

def guarded(name, globals=None, locals=None, fromlist=(), level=0):
    importer = (globals or {{}}).get("__name__") or ""
    if level == 0 and importer.split(".")[0] in (*ours, "__main__") and name.split(".")[0] not in allowed:
        raise ModuleNotFoundError(f"{{importer}} imports {{name}}, which a bare machine has not")
    return original(name, globals, locals, fromlist, level)

builtins.__import__ = guarded
for name in ("vllm", "sklearn", "kernels", "peft", "trl", "gradio", "openai", "datasets", "ray", "opentelemetry"):
    sys.modules[name] = None
"""


def run(tmp_path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    (tmp_path / "sitecustomize.py").write_text(_HIDE)
    out = tmp_path / "out"
    return subprocess.run(
        [sys.executable, "bench/gpu.py", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=290,
        env={
            **os.environ,
            "PYTHONPATH": str(tmp_path),
            "OMP_NUM_THREADS": "1",
            "CUDA_VISIBLE_DEVICES": "",
            "OUT": str(out),
        },
    )


def test_without_a_card_it_says_so(tmp_path: Path) -> None:
    done = run(tmp_path)
    assert done.returncode == 0
    assert "sees no card on this machine (" in done.stdout  # the reason is torch's: its build, or no driver
    assert "nothing was measured" in done.stdout


def test_every_row_runs_with_what_the_kit_brings(tmp_path: Path) -> None:
    """To its end, services included; what is skipped needs vLLM, a card, or a second one.

    A reward model beside chat is left out: each starts alone as well, and a start takes as long as the rest.
    """
    groups = [group for group in GROUPS if group != "pair"]
    done = run(tmp_path, "--device", "cpu", "--shapes", "tiny", "--only", *groups)
    assert done.returncode == 0, done.stdout + done.stderr
    (written,) = (tmp_path / "out").glob("gpu-*.json")  # of $OUT
    result = json.loads(written.read_text())
    assert result["batcher"] == "PagedBatcher"
    rows = [row for group in GROUPS for row in result.get(group, ())]
    assert {row["skipped"] for row in rows if "skipped" in row} == {
        "vllm is not installed",
        "needs two cards",
        "needs a card: weights in fp8 are made, and multiplied by, on cards alone",
    }
    assert [row for row in rows if "error" in row] == []
    assert {group for group in GROUPS if result.get(group)} == {*groups}
    assert all(one["right"] for row in result["kernels"] for one in row["at"])
    same, _, half = result["offload"]
    assert same["ok"] is True and same["places"] == ["cpu", "disk"] and half["offloaded_bytes"] > 0
    for row in rows:
        if row.get("path"):
            assert row["path"]["batcher"] == "PagedBatcher" and not row["path"]["refused"]
    loads = [row for row in result["service"] if "ttft_ms" in row.get("measured", {})]
    assert [row["what"] for row in loads] == ["1 streams", "4 streams", "saturated"]
    assert all(row["planned"]["tpot_ms"] > 0 and row["measured"]["output_tokens_per_s"] > 0 for row in loads)
    started, *scored = result["rewards"]
    assert set(started["workers"]) == {"reward"} and all(row["measured"]["texts_per_s"] > 0 for row in scored)
    text = written.with_suffix(".md").read_text()
    for title in ("Each kernel by itself", "Memory, planned / measured", "Services by `qserve bench`"):
        assert f"## {title}" in text


def test_of_experts_those_count_that_streams_have() -> None:
    """Of 30B-A3B in fp8 about 3.3 GB of 31 for one stream, nearly all for 512; a token computes with 3 B."""
    spec = resolve("Qwen/Qwen3-30B-A3B").spec
    hardware = Hardware(parse_gpu("h100-sxm"), 512 * GIB, 500 * GIB, 64)
    request = plan_request(engine="transformers", quant="fp8", max_model_len=4096)
    plan = make_plan(resolve("Qwen/Qwen3-30B-A3B"), hardware, request)
    (one, flop), (many, _) = work_of(plan, 1, 0), work_of(plan, 512, 0)
    table = 2 * spec.vocab_size * spec.hidden_size
    assert 3.0e9 < one < 4.0e9 and plan.devices[0].weights_bytes - table - many < 1e6
    assert 2 * 2.5e9 < flop < 2 * 3.3e9
