"""Where the processor time of a worker's start on a CPU goes, phase by phase: the first one, and one that maps.

    python bench/random_awq.py --out ~/qwen3-8b-awq-random
    python bench/start_phases.py --checkpoint ~/qwen3-8b-awq-random
    python bench/start_phases.py --quant bf16 bnb-int8 bnb-nf4                # Qwen3-0.6B shape, random weights

Each start is a process of its own, on an empty cache of packed weights the first time. Seconds are the processor's,
of all threads: what another process does beside it counts little.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

_LOAD = """
import contextlib, dataclasses, json, os, sys, time
from pathlib import Path
began = time.process_time()
from qserve.worker.unused_packages import leave_out_unused
leave_out_unused({"plan": {"quant": {"scheme": sys.argv[3]}, "on_cpu": True}})
import torch
from qserve.engines.transformers.worker.batching.make import make_batcher
from qserve.model import load as loading
from qserve.model.packed_cache import folder, start
phases = {"imports": time.process_time() - began}

def timed(holder, name, phase):
    function = getattr(holder, name)
    def call(*args, **named):
        began, before = time.process_time(), sum(phases.values())
        try:
            return function(*args, **named)
        finally:
            inner = sum(phases.values()) - before  # phases within this one
            phases[phase] = phases.get(phase, 0) + time.process_time() - began - inner
    setattr(holder, name, call)

timed(loading, "load_tokenizer", "tokenizer")
timed(loading, "_stored", "read by the library, quantized in flight")
timed(loading, "compile_stored", "stored numbers packed")
timed(loading, "compile_quantized", "quantized layers packed")
timed(loading, "repack_quantized", "repacked by bitsandbytes")
timed(loading, "pack_linears", "16-bit layers and the head packed")
timed(folder, "write_tensors", "packed weights written")
timed(folder.MappedTensors, "of", "packed weights mapped, sums read")
timed(start, "packed_key", "what the checkpoint is")
from qserve.detect import detect
from qserve.hub import resolve
from qserve.planner import PlanRequest, make_plan
machine = dataclasses.replace(detect(), devices=())
plan = make_plan(resolve(sys.argv[1]), machine, PlanRequest(engine="transformers", quant=sys.argv[3]))
began, clock, before = time.process_time(), time.monotonic(), sum(phases.values())
loading.load(Path(sys.argv[2]), plan, packed=folder.packed_folder(64 << 30))
spent = time.process_time() - began
phases["the rest of loading"] = spent - (sum(phases.values()) - before)
status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
held = {name: int(status[name].split()[0]) // 1024 for name in ("RssAnon", "RssFile", "VmHWM")}
print(json.dumps({"phases": phases, "load_s": time.monotonic() - clock, "held_mib": held}))
"""


def started(folder: Path, quant: str, cache: Path) -> dict[str, dict[str, float]]:
    """What a process says that loads `folder` once."""
    command = [sys.executable, "-c", _LOAD, str(folder), str(folder), quant]
    environment = {**os.environ, "XDG_CACHE_HOME": str(cache)}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    told: dict[str, dict[str, float]] = json.loads(done.stdout.splitlines()[-1])
    return told


def show(quant: str, starts: list[dict[str, dict[str, float]]]) -> None:
    """As Markdown."""
    rows = [one["phases"] | {"all": sum(one["phases"].values())} for one in starts]
    print(f"\n| {quant}, processor seconds | {' | '.join(f'start {i + 1}' for i in range(len(starts)))} |")
    print("|---" * (len(starts) + 1) + "|")
    names = list(dict.fromkeys(name for one in rows for name in one if name != "all"))
    for name in (*names, "all"):
        print(f"| {name} | {' | '.join(f'{one.get(name, 0):.1f}' for one in rows)} |")
    for one in starts:
        print(", ".join(f"{name} {size} MiB" for name, size in one["held_mib"].items()))


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", type=Path, help="a folder with one, in place of random weights")
    parser.add_argument("--quant", nargs="+", default=["auto"])
    parser.add_argument("--starts", type=int, default=2)
    args = parser.parse_args()
    folder = args.checkpoint
    if folder is None:
        from bench.random_checkpoint import write_checkpoint

        folder = Path(tempfile.gettempdir()) / "qserve-random-qwen3-0.6b"
        write_checkpoint(folder, "qwen3-0.6b")
    for quant in args.quant:
        with tempfile.TemporaryDirectory(prefix="qserve-start-phases-") as cache:
            show(quant, [started(folder, quant, Path(cache)) for _ in range(args.starts)])


if __name__ == "__main__":
    main()
