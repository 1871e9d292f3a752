"""vLLM on a CPU with its worker in a process of its own, as vLLM has it, and in the engine's, as qserve asks for:

    python bench/vllm_processes.py [--shape demo|qwen3-0.6b|…] [--turns 2] [--tokens 400] [--threads 1,2]

In turns: seconds and processor seconds of a start, what all processes hold (PSS), tokens a second of one stream and of
eight, and the processor seconds of both loads. `--threads`: numbers of OpenMP threads of the shared process to try.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import httpx
import psutil
from random_checkpoint import SHAPES, write_checkpoint

from qserve.detect import detect
from qserve.engines.vllm.launch.command import command
from qserve.engines.vllm.launch.parser import installed_parser
from qserve.engines.vllm.launch.processes import process_figures
from qserve.hub import resolve
from qserve.planner import Plan, make_plan, plan_request
from qserve.units import MIB
from qserve.worker.process import WorkerSpec

NUM_STREAMS, PROMPT_TOKENS, KEY = 8, 128, "bench"
START_TIMEOUT_S = 400


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="demo", help="demo, or one of bench/random_checkpoint.py")
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=400)
    parser.add_argument("--threads", default="", help="as 1,2 [what qserve sets]")
    args = parser.parse_args()
    kinds = {"apart": {"VLLM_ENABLE_V1_MULTIPROCESSING": "1"}}
    kinds |= {f"joined, {n} threads": {"OMP_NUM_THREADS": n} for n in args.threads.split(",") if n} or {"joined": {}}
    folder = Path(tempfile.gettempdir()) / f"qserve-random-{args.shape}"
    model = args.shape if args.shape not in SHAPES else str(write_checkpoint(folder, args.shape))
    fixed = {"max_model_len": 1024, "max_num_seqs": NUM_STREAMS, "max_num_batched_tokens": 512}
    request = plan_request(engine="vllm", quant="bf16", enforce_eager=True, kv_cache_memory_bytes=512 * MIB, **fixed)
    checkpoint = resolve(model)
    plan = make_plan(checkpoint, replace(detect(), devices=()), request)
    print("| processes | start s | CPU s of it | PSS MiB | one stream tok/s | eight tok/s | CPU s of both |")
    print("|---|---|---|---|---|---|---|")
    for _ in range(args.turns):
        for name, environment in kinds.items():
            _measure(name, plan, Path(str(checkpoint.folder)), environment, args.tokens)


def _measure(name: str, plan: Plan, folder: Path, environment: dict[str, str], num_tokens: int) -> None:
    """One start, one line."""
    with tempfile.TemporaryDirectory() as private:
        spec = WorkerSpec(folder, ("m",), plan, Path(private) / "s", KEY)
        started = command(spec, installed_parser(), "", {**os.environ, **environment})
        began_s = time.monotonic()
        with Path(private, "log").open("wb") as log:
            server = subprocess.Popen(started.argv, env=started.env, stdout=log, stderr=log)
        try:
            with httpx.Client(
                transport=httpx.HTTPTransport(uds=str(spec.socket)),
                base_url="http://worker",
                headers={"authorization": f"Bearer {KEY}"},
                timeout=600,
            ) as client:
                _until_ready(client, server)
                start_s, start_cpu_s = time.monotonic() - began_s, _cpu_s(server.pid)
                held = process_figures(server.pid).resident_bytes
                _ask(client, 0, 8)
                one_s = _timed(lambda: _ask(client, 1, num_tokens))
                with ThreadPoolExecutor(NUM_STREAMS) as pool:
                    all_s = _timed(lambda: list(pool.map(lambda n: _ask(client, n, num_tokens), range(NUM_STREAMS))))
                load_cpu_s = _cpu_s(server.pid) - start_cpu_s
        finally:
            server.terminate()
            server.wait()
    rates = f"{num_tokens / one_s:.1f} | {NUM_STREAMS * num_tokens / all_s:.1f}"
    print(f"| {name} | {start_s:.1f} | {start_cpu_s:.1f} | {held / MIB:.0f} | {rates} | {load_cpu_s:.1f} |", flush=True)


def _until_ready(client: httpx.Client, server: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while server.poll() is None and time.monotonic() < deadline:
        try:
            if client.get("/health").status_code == 200:
                return
        except httpx.TransportError:
            time.sleep(0.25)
    sys.exit("vLLM did not become ready")


def _ask(client: httpx.Client, number: int, num_tokens: int) -> None:
    prompt = list(range(300 + number, 300 + number + PROMPT_TOKENS))
    body = {"model": "m", "prompt": prompt, "max_tokens": num_tokens, "ignore_eos": True, "temperature": 0}
    client.post("/v1/completions", json=body).raise_for_status()


def _timed(work: Callable[[], object]) -> float:
    began_s = time.monotonic()
    work()
    return time.monotonic() - began_s


def _cpu_s(pid: int) -> float:
    """Of a process and all below it, those that have ended too."""
    tree = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    return sum(sum(process.cpu_times()[:4]) for process in tree)


if __name__ == "__main__":
    main()
