"""What `qserve up` adds to the start of bare vLLM: both started alternately with the same flags, until they answer.

    .venv/bin/python bench/startup.py --rounds 3

Bare vLLM is started with the arguments that `qserve up` gives it, and counts as ready like behind qserve: when it has
answered a request for one token. The overhead is everything else: planning, checking flags, the guard, the gateway.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import httpx

from qserve.engines.vllm.launch.command import command
from qserve.engines.vllm.launch.parser import installed_parser
from qserve.hub import resolve
from qserve.planner import make_plan, plan_request
from qserve.service.machine import hardware_of
from qserve.worker.process import WorkerSpec

FLAGS = ("--max-model-len", "1024", "--kv-cache-memory-bytes", "64MiB", "--enforce-eager")
ONE_TOKEN = {"model": "demo", "prompt": "a", "max_tokens": 1, "temperature": 0}


def behind_qserve(folder: Path) -> float:
    """Seconds until `qserve up` says that it is ready."""
    qserve = str(Path(sys.executable).with_name("qserve"))
    command_line = [qserve, "up", "--model", "demo", "--engine", "vllm", *FLAGS, "--port", "0", "--state-dir", folder]
    began = time.monotonic()
    process = subprocess.Popen(command_line, stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert process.stdout is not None
    for line in process.stdout:
        if re.match("API ", line):
            break
    took_s = time.monotonic() - began
    process.send_signal(signal.SIGTERM)
    process.communicate()
    return took_s


def bare(folder: Path) -> float:
    """Seconds until vLLM alone has answered a request for one token."""
    request = plan_request(engine="vllm", max_model_len=1024, kv_cache_memory_bytes=64 * 2**20, enforce_eager=True)
    checkpoint = resolve("demo")
    plan = make_plan(checkpoint, hardware_of("none"), request)
    assert checkpoint.folder is not None
    started = command(WorkerSpec(checkpoint.folder, ("demo",), plan, folder / "s", "key"), installed_parser())
    with (folder / "bare.log").open("w") as log:
        began = time.monotonic()
        process = subprocess.Popen(started.argv, env=started.env, stdout=log, stderr=log, start_new_session=True)
        with httpx.Client(
            transport=httpx.HTTPTransport(uds=str(folder / "s")), headers={"authorization": "Bearer key"}
        ) as client:
            while not _answers(client):
                assert process.poll() is None, (folder / "bare.log").read_text()[-2000:]
                time.sleep(0.1)
        took_s = time.monotonic() - began
        os.killpg(process.pid, signal.SIGTERM)
        process.wait()
    return took_s


def _answers(client: httpx.Client) -> bool:
    try:
        return client.post("http://vllm/v1/completions", json=ONE_TOKEN, timeout=60).status_code == 200
    except httpx.HTTPError:
        return False


def main() -> None:
    """Print each round and the medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    installed_parser()  # the engine is asked for its flags once per installation, not at every start
    rounds = []
    for number in range(arguments.rounds):
        with tempfile.TemporaryDirectory(prefix="startup-") as name:
            alone_s, behind_s = bare(Path(name)), behind_qserve(Path(name))
        rounds.append({"bare_s": round(alone_s, 2), "qserve_s": round(behind_s, 2)})
        print(f"round {number + 1}: bare vLLM {alone_s:.2f} s, qserve up {behind_s:.2f} s", flush=True)
    added = statistics.median(one["qserve_s"] - one["bare_s"] for one in rounds)
    print(f"qserve up adds {added:+.2f} s (median of {len(rounds)} pairs)")
    if arguments.json:
        arguments.json.write_text(json.dumps({"rounds": rounds, "median_added_s": added}, indent=1))


if __name__ == "__main__":
    main()
