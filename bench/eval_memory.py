"""Long prompts with echo, as an evaluation sends them, against the memory that the plan leaves for them.

    python -m bench.eval_memory                      # Qwen3-0.6B's shape, random weights, prompts of 8192 tokens

The server is planned with --prompt-logprobs, which is what `qserve eval --model` does. Then a harness's requests come:
several prompts each, several at once, log-probabilities of every token. Held against the plan is the worker's peak of
resident memory (VmHWM) less what it held when it was ready.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

import psutil

from bench.random_checkpoint import SHAPES, write_checkpoint
from qserve.units import MIB, format_bytes


def post(url: str, body: dict[str, Any]) -> int:
    """Bytes of the answer."""
    request = urllib.request.Request(
        f"{url}/v1/completions", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=3600) as reply:
        return len(reply.read())


def status(pid: int, name: str) -> int:
    """A line of /proc/PID/status that is in kB, in bytes."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith(f"{name}:"))) * 1024


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=sorted(SHAPES), default="qwen3-0.6b")
    parser.add_argument("--prompt-tokens", type=int, default=8192)
    parser.add_argument("--prompts", type=int, default=2, help="of one request")
    parser.add_argument("--requests", type=int, default=2, help="at once")
    parser.add_argument("--checkpoint", type=Path, help="where to keep the random checkpoint [a temporary folder]")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        checkpoint = write_checkpoint(args.checkpoint or folder / "model", args.shape)
        ready = folder / "ready.json"
        command = [
            sys.executable,
            "-m",
            "qserve.cli.child",
            str(os.getpid()),
            "up",
            "--model",
            str(checkpoint),
            "--served-model-name",
            "random",
            "--engine",
            "transformers",
            "--prompt-logprobs",
            "--max-model-len",
            str(args.prompt_tokens + 64),
            "--max-num-seqs",
            "4",
            "--port",
            "0",
            "--state-dir",
            str(folder),
            "--ready-file",
            str(ready),
        ]
        log = (folder / "up.log").open("w")
        process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        try:
            while not ready.is_file():
                if process.poll() is not None:
                    sys.exit((folder / "up.log").read_text())
                time.sleep(0.2)
            measure(json.loads(ready.read_text())["url"], process.pid, args)
        finally:
            process.terminate()
            process.wait()
            log.close()


def measure(url: str, pid: int, args: argparse.Namespace) -> None:
    """Send it all, and print the peak beside the plan."""
    children = psutil.Process(pid).children()
    worker = next(one for one in children if "qserve.engines.transformers.worker" in " ".join(one.cmdline())).pid
    with urllib.request.urlopen(f"{url}/v1/qserve/report") as reply:
        (entry,) = json.load(reply)["data"]
    (device,) = entry["planned"]["devices"]
    before = status(worker, "VmRSS")
    Path(f"/proc/{worker}/clear_refs").write_text("5")  # the peak begins anew
    prompt = [index % 251 for index in range(args.prompt_tokens)]
    body = {
        "model": "random",
        "prompt": [prompt] * args.prompts,
        "max_tokens": 1,
        "echo": True,
        "logprobs": 1,
        "temperature": 0,
    }
    began = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(args.requests) as pool:
        sizes = list(pool.map(lambda _: post(url, body), range(args.requests)))
    seconds = time.monotonic() - began
    peak = status(worker, "VmHWM")
    planned = device["activations_bytes"] + device["runtime_bytes"] + device["kv_cache_bytes"] + device["weights_bytes"]
    print(
        f"{args.shape}: {args.requests} requests of {args.prompts} × {args.prompt_tokens:,} tokens with echo in "
        f"{seconds:.0f} s, {sum(sizes) / MIB:.1f} MiB of answers\n"
        f"ready {format_bytes(before)} · peak {format_bytes(peak)} (grew by {format_bytes(peak - before)}) · "
        f"planned {format_bytes(planned)}, of it for one step {format_bytes(device['activations_bytes'])}"
    )
    sys.exit(0 if peak <= planned else "the peak is above the plan")


if __name__ == "__main__":
    main()
