"""Start the installed vLLM with something broken on purpose, and keep what its log says of it.

    python scripts/broken_starts.py                 every case, about half a minute each
    python scripts/broken_starts.py no_tok socket

Writes tests/unit/engines/vllm/launch/logs/NAME.log: the lines around the reason, with folders renamed. For a new
release of vLLM: run it, then the tests; what vLLM says differently now fails them.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import safetensors.torch

from qserve.engines.vllm.launch.diagnose import failure_of
from qserve.hub import resolve

DEMO = Path(str(resolve("demo").folder))
LOGS = Path(__file__).parent.parent / "tests" / "unit" / "engines" / "vllm" / "launch" / "logs"
BASE = [
    "--dtype",
    "bfloat16",
    "--max-model-len",
    "1024",
    "--max-num-seqs",
    "8",
    "--max-num-batched-tokens",
    "1024",
    "--enforce-eager",
    "--disable-uvicorn-access-log",
]
CACHE = ["--kv-cache-memory-bytes", "70000000"]
TIMEOUT_S = 300


def config(folder: Path, **changes: Any) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


def cut_in_half(folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def lose_a_shard(folder: Path) -> None:
    names = safetensors.torch.load_file(folder / "model.safetensors").keys()
    (folder / "model.safetensors").rename(folder / "model-00001-of-00002.safetensors")
    shards = dict.fromkeys(names, "model-00001-of-00002.safetensors")
    index = {"metadata": {}, "weight_map": {**shards, "model.layers.9.x": "model-00002-of-00002.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def lose_the_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()
    (folder / "tokenizer_config.json").unlink()


HYBRID = {
    "architectures": ["Qwen3_5ForCausalLM"],
    "model_type": "qwen3_5_text",
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 64,
    "linear_value_head_dim": 64,
    "linear_conv_kernel_dim": 4,
    "layer_types": ["linear_attention", "linear_attention", "linear_attention", "full_attention"],
}
UNKNOWN_QUANT = {"quantization_config": {"quant_method": "aqlm", "bits": 4}}

# Name: what is done to a copy of the demo model, further flags, further environment.
CASES: dict[str, tuple[Callable[[Path], None] | None, list[str], dict[str, str]]] = {
    "tool_parser": (None, [*CACHE, "--enable-auto-tool-choice", "--tool-call-parser", "nope"], {}),
    "no_plugin": (None, [*CACHE, "--quantization", "bitsandbytes"], {"VLLM_PLUGINS": ""}),
    "fp8_method": (None, [*CACHE, "--quantization", "fp8"], {}),
    "unknown_flag": (None, [*CACHE, "--no-such-flag"], {}),
    "socket": (None, CACHE, {}),
    "arch": (lambda f: config(f, architectures=["Qwen9ForCausalLM"], model_type="qwen9"), CACHE, {}),
    "arch2": (lambda f: config(f, architectures=["Qwen9ForCausalLM"]), CACHE, {}),
    "no_config": (lambda f: (f / "config.json").unlink(), CACHE, {}),
    "no_tok": (lose_the_tokenizer, CACHE, {}),
    "template_path": (None, [*CACHE, "--chat-template", "/nowhere/x.jinja"], {}),
    "bad_template": (lambda f: (f / "chat_template.jinja").write_text("{% for x in %}") and None, CACHE, {}),
    "too_long": (None, [*CACHE, "--max-model-len", "9999"], {}),
    "hybrid": (lambda f: config(f, **HYBRID), CACHE, {}),
    "quant_unknown": (lambda f: config(f, **UNKNOWN_QUANT), CACHE, {}),
    "truncated": (cut_in_half, CACHE, {}),
    "missing_shard": (lose_a_shard, CACHE, {}),
    "no_weights": (lambda f: (f / "model.safetensors").unlink(), CACHE, {}),
    "wrong_shape": (lambda f: config(f, intermediate_size=640), CACHE, {}),
    "kv_small": (None, ["--kv-cache-memory-bytes", "1000000"], {}),
    "kv_zero": (None, ["--kv-cache-memory-bytes", "1000"], {}),
    "kv_huge": (None, ["--kv-cache-memory-bytes", "100000000000"], {}),
    "kv_util": (None, ["--gpu-memory-utilization", "1.0"], {}),
    "seqs_over": (None, [*CACHE, "--max-num-batched-tokens", "4"], {}),
    "flag_field": (None, [*CACHE, "-cc", '{"level":0}'], {}),
    "flag_folder": (None, [*CACHE, "--tokenizer", "/x"], {}),
    "flag_type": (None, [*CACHE, "--seed", "x"], {}),
}


def main() -> None:
    for name in sys.argv[1:] or CASES:
        with tempfile.TemporaryDirectory() as scratch:
            began = time.monotonic()
            lines = start(name, Path(scratch))
            failure = failure_of(lines)
            print(f"{name:14s} {time.monotonic() - began:5.0f} s  {failure.kind}: {failure.message}")
            kept = [shown(lines[i], scratch) for i in sorted(around(lines, failure.said))]
            (LOGS / f"{name}.log").write_text("\n".join(kept) + "\n")


def start(name: str, scratch: Path) -> list[str]:
    """The log of a start that is meant to fail."""
    breaks, flags, environment = CASES[name]
    folder, socket, log_file = scratch / name, scratch / "s.sock", scratch / "log"
    shutil.copytree(DEMO, folder)
    if breaks is not None:
        breaks(folder)
    if name == "socket":
        socket.touch()
    settings = {
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_LOGGING_COLOR": "0",
    }
    module = "vllm.entrypoints.launchers.api_server.entry"
    command = [sys.executable, "-m", module, "--model", str(folder), "--uds", str(socket)]
    with log_file.open("w") as log:
        server = subprocess.Popen(
            [*command, *BASE, *flags],
            stdout=log,
            stderr=log,
            env={**os.environ, **settings, **environment},
            start_new_session=True,
        )
    try:
        server.wait(TIMEOUT_S)
    except subprocess.TimeoutExpired:
        print(f"{name}: it did not end within {TIMEOUT_S} s; did it start after all?")
    finally:
        if server.poll() is None:
            os.killpg(server.pid, signal.SIGKILL)
            server.wait()
    return log_file.read_text(errors="replace").splitlines()


def around(lines: list[str], reason: str) -> set[int]:
    """Line numbers to keep: about the reason, the figures, the end."""
    place = next(i for i, line in enumerate(lines) if reason[:60] in line)
    marks = ("KV cache size", "Loading weights took", "Initializing a V1")
    figures = {i for i, line in enumerate(lines) if any(mark in line for mark in marks)}
    last = range(max(0, len(lines) - 3), len(lines))
    return {*range(max(0, place - 5), min(len(lines), place + 9)), *last, *figures}


def shown(line: str, scratch: str) -> str:
    """The line without what is of this machine alone."""
    packages = re.sub(r"/\S*/site-packages", "/home/user/.venv/lib/python3.11/site-packages", line)
    python = re.sub(r"/[^\s\"']*?/lib/python(3\.\d+)/(?!site-packages)", r"/usr/lib/python\1/", packages)
    return python.replace(f"{scratch}/s.sock", "/run/s.sock").replace(scratch, "/models")[:700]


main()
