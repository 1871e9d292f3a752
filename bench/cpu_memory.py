"""Where the memory of `qserve up` on a CPU lies: process by process, and in the worker term by term; and how it starts.

    python bench/cpu_memory.py                               # Qwen3-0.6B shape; bf16, int8, NF4: some minutes
    python bench/cpu_memory.py --quant bnb-nf4 --json a.json

Each service is started twice on an empty cache of packed weights, and asked for 4 x 1 and then 4 x 8 streams of 128
tokens and 33 new ones. PSS is a page's share: what n processes have in common counts 1/n in each.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import json
import os
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from bench.random_checkpoint import SHAPES, write_checkpoint
from bench.servers import Server, load_round, qserve_up, running, wait_ready
from bench.throughput import prompt_text
from qserve.worker.process_tree import tree_of

NEW_TOKENS, MIB = 33, 1024**2
_NAMES = {
    "qserve.engines.transformers.worker": "chat worker",
    "qserve.engines.transformers.worker.prompts.process": "reader of prompts",
    "qserve.engines.transformers.worker.grammar.trial_process": "trial of structures",
    "qserve.gateway": "gateway's process",
    "qserve.ui": "web UI",
}


def named(pid: int) -> str:
    """What a process of the service does."""
    words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    found = [name for module, name in _NAMES.items() if any(word.startswith(module) for word in words)]
    return found[-1] if found else "gateway and supervisor" if "up" in words else " ".join(words)[:60]


def rollup(pid: int) -> dict[str, int]:
    """/proc/PID/smaps_rollup in bytes."""
    lines = (line.split() for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:])
    return {words[0].rstrip(":"): 1024 * int(words[1]) for words in lines}


def processes(pid: int) -> list[dict[str, Any]]:
    """Of the service's tree: name, RSS, PSS, and what of it is of no file."""
    found = []
    for one in tree_of(pid):
        with contextlib.suppress(OSError):
            held = rollup(one)
            found.append({"name": named(one), **{key: held[key] for key in ("Rss", "Pss", "Pss_Anon")}})
    return sorted(found, key=lambda row: -int(row["Pss"]))


async def streams(server: Server, count: int, seed: int) -> None:
    """One wave."""
    rng = random.Random(seed)
    await load_round(server, [prompt_text(rng) for _ in range(count)], NEW_TOKENS)


async def measured(server: Server, log: Path, rounds: int) -> dict[str, Any]:
    """A service from its start to its end."""
    began_s = time.monotonic()
    with running(server, log) as process:
        await wait_ready(server, process, log)
        result: dict[str, Any] = {"ready_s": time.monotonic() - began_s}
        for count in (1, 8):
            for number in range(rounds):
                await streams(server, count, 100 * count + number)
            result[f"processes_{count}"] = processes(process.pid)
        async with httpx.AsyncClient(timeout=60) as client:
            reply = (await client.get(f"{server.url}/v1/qserve/memory")).json()
        result["memory"] = next(iter(reply["models"].values())) if "models" in reply else reply
        return result


def show(quant: str, runs: list[dict[str, Any]]) -> None:
    """As Markdown."""
    last = runs[-1]
    starts = ", ".join(f"{run['ready_s']:.1f}" for run in runs)
    print(f"\n{quant}: ready after {starts} s\n")
    print("| process, MiB | RSS | PSS, 1 stream | PSS, 8 streams | of no file |\n|---|---|---|---|---|")
    for row in last["processes_8"]:
        before = sum(one["Pss"] for one in last["processes_1"] if one["name"] == row["name"])
        figures = (row["Rss"], before, row["Pss"], row["Pss_Anon"])
        print(f"| {row['name']} | {' | '.join(f'{one / MIB:.0f}' for one in figures)} |")
    for number, run in enumerate(runs, 1):
        sums = [sum(one["Pss"] for one in run[f"processes_{count}"]) / MIB for count in (1, 8)]
        print(f"| all, start {number} | | {sums[0]:.0f} | {sums[1]:.0f} | |")
    resident = find_resident(last["memory"])
    print(
        "\nWorker: " + ", ".join(f"{term.removesuffix('_bytes')} {size / MIB:.0f}" for term, size in resident.items())
    )


def find_resident(document: Any) -> dict[str, int]:
    """The worker's terms, wherever the document has them."""
    if isinstance(document, dict):
        if isinstance(document.get("resident"), dict):
            return dict(document["resident"])
        document = list(document.values())
    if isinstance(document, list):
        return next((found for one in document if (found := find_resident(one))), {})
    return {}


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=sorted(SHAPES), default="qwen3-0.6b")
    parser.add_argument("--checkpoint", type=Path, help="a folder with one, in place of random weights")
    parser.add_argument("--quant", nargs="+", default=["bf16", "bnb-int8", "bnb-nf4"])
    parser.add_argument("--starts", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=4, help="of requests; 0: the starts alone")
    parser.add_argument("--more", nargs="+", default=[], help="further flags of qserve up, without their dashes")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    folder = args.checkpoint or Path(tempfile.gettempdir()) / f"qserve-random-{args.shape}"
    if args.checkpoint is None:
        write_checkpoint(folder, args.shape)
    results = {}
    for quant in args.quant:
        with tempfile.TemporaryDirectory(prefix="qserve-cpu-memory-") as home:
            cache = Path(home) / "cache"
            runs = []
            for number in range(args.starts):
                server = qserve_up(folder, Path(home) / f"state-{number}", "bfloat16")
                flags = ["--quant", quant, "--max-num-seqs", "8", *(f"--{one}" for one in args.more)]
                server = dataclasses.replace(
                    server, command=[*server.command, *flags], environment={**os.environ, "XDG_CACHE_HOME": str(cache)}
                )
                runs.append(asyncio.run(measured(server, Path(home) / "log", args.rounds)))
            show(quant, runs)
            results[quant] = runs
    if args.json:
        args.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
