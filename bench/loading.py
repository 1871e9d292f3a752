"""What loading takes, and what is held afterwards, planned against measured: a real worker per quantization.

    python bench/loading.py                                   Qwen3-1.7B shape; bf16, int8, nf4; some minutes
    python bench/loading.py --shape qwen3-0.6b --quant bf16   one of them

Each worker loads a random checkpoint of the shape, reads one prompt as long as a step may be, and says at
GET /v1/qserve/memory what it holds; then it generates. Exit status 1 where a figure misses its target.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import secrets
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench.random_checkpoint import SHAPES, write_checkpoint
from qserve.detect import detect
from qserve.hub import resolve
from qserve.planner import Plan, PlanRequest, make_plan
from qserve.worker.process import WorkerSpec

TARGET_WEIGHTS = 0.03
TARGET_TOTAL = 0.05
TARGET_BF16_PEAK = 1.15
QUANTS = ("bf16", "bnb-int8", "bnb-nf4")
TERMS = ("weights", "kv_cache", "activations", "runtime")
MIB = 1024**2


class Worker:
    """A worker process on a unix socket, asked by hand."""

    def __init__(self, folder: Path, plan: Plan) -> None:
        self._home = tempfile.TemporaryDirectory(prefix="qserve-loading-")
        self._socket = Path(self._home.name) / "worker.sock"
        self._key = secrets.token_hex(16)
        spec = WorkerSpec(folder, ("model",), plan, self._socket, self._key)
        file = Path(self._home.name) / "spec.json"
        file.write_text(json.dumps(spec.to_json()))
        environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
        command = [sys.executable, "-m", "qserve.engines.transformers.worker", str(file)]
        self._process = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)

    def __enter__(self) -> Worker:
        while self._process.poll() is None:
            try:
                self.ask("GET", "/health")
            except OSError:
                time.sleep(0.2)
            else:
                return self
        raise SystemExit(f"the worker ended with status {self._process.returncode}")

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait()
        self._home.cleanup()

    def ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        connection = http.client.HTTPConnection("worker")
        connection.sock = socket.socket(socket.AF_UNIX)
        connection.sock.connect(str(self._socket))
        headers = {"authorization": f"Bearer {self._key}", "content-type": "application/json"}
        connection.request(method, path, None if body is None else json.dumps(body), headers)
        answer = connection.getresponse()
        document: dict[str, Any] = json.loads(answer.read())
        if answer.status != 200:
            raise SystemExit(f"{path}: {document}")
        return document


def measure(folder: Path, quant: str) -> dict[str, Any]:
    """Planned and measured bytes per term, and the cost of loading."""
    machine = replace(detect(), devices=())
    plan = make_plan(resolve(str(folder)), machine, PlanRequest(engine="transformers", quant=quant, max_model_len=4096))
    with Worker(folder, plan) as worker:
        prompt = [1] * plan.workload.max_num_batched_tokens
        worker.ask("POST", "/v1/completions", {"model": "model", "prompt": prompt, "max_tokens": 1})
        memory = worker.ask("GET", "/v1/qserve/memory")
        speeds = [tokens_per_s(worker, streams) for streams in (1, 8)]
    planned = {term: getattr(plan.devices[0], f"{term}_bytes") for term in TERMS}
    measured = {term: memory[f"{term}_bytes"] for term in TERMS}
    return {"quant": quant, "planned": planned, "measured": measured, "load": memory["load"], "speeds": speeds}


def tokens_per_s(worker: Worker, streams: int) -> float:
    """Of so many answers to one short prompt at once, the prompt's time included."""
    body = {"model": "model", "prompt": [1] * 8, "max_tokens": 24, "n": streams, "temperature": 1.0, "ignore_eos": True}
    began_s = time.monotonic()
    tokens = worker.ask("POST", "/v1/completions", body)["usage"]["completion_tokens"]
    return float(tokens) / (time.monotonic() - began_s)


def row(result: dict[str, Any]) -> tuple[str, bool]:
    """The line of the table, and whether all targets are met."""
    planned, measured, load = result["planned"], result["measured"], result["load"]
    weights = planned["weights"] / measured["weights"] - 1
    total = sum(planned.values()) / sum(measured.values()) - 1
    peak = load["peak_bytes"] / load["kept_bytes"]
    terms = " | ".join(f"{planned[term] / MIB:.0f} / {measured[term] / MIB:.0f}" for term in TERMS)
    line = f"| {result['quant']} | {terms} | {weights:+.2%} | {total:+.2%} | {load['seconds']:.1f} | "
    line += f"{load['peak_bytes'] / MIB:.0f} | {load['kept_bytes'] / MIB:.0f} | {peak:.3f} | "
    line += " / ".join(f"{speed:.1f}" for speed in result["speeds"]) + " |"
    is_met = abs(weights) <= TARGET_WEIGHTS and abs(total) <= TARGET_TOTAL
    return line, is_met and (result["quant"] != "bf16" or peak <= TARGET_BF16_PEAK)


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=sorted(SHAPES), default="qwen3-1.7b")
    parser.add_argument("--quant", nargs="+", default=QUANTS)
    args = parser.parse_args()
    folder = write_checkpoint(Path(tempfile.gettempdir()) / f"qserve-random-{args.shape}", args.shape)
    print(f"{args.shape}, random weights; MiB, planned / measured\n")
    columns = (*TERMS, "weights off", "total off", "load s", "load peak", "kept", "peak ÷ kept", "tokens/s at 1 / 8")
    print(f"| | {' | '.join(columns)} |\n|{'---|' * (len(columns) + 1)}")
    met = True
    for quant in args.quant:
        line, is_met = row(measure(folder, quant))
        met = met and is_met
        print(line, flush=True)
    print(f"\ntargets (weights {TARGET_WEIGHTS:.0%}, total {TARGET_TOTAL:.0%}, bf16 peak {TARGET_BF16_PEAK}): {met}")
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
