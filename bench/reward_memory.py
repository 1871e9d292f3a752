"""Chat and reward on one memory budget: what each worker holds under load against its share of the plan.

    python bench/reward_memory.py                        # two 85M models, cache of 256 MiB, texts up to 4096 tokens
    python bench/reward_memory.py --chat-shape qwen3-0.6b --seconds 60

Starts `qserve up --model … --reward …` over random checkpoints, keeps both busy (streams of chat; texts of all lengths
to the longest for the reward model) and samples the proportional set size of each worker's processes. Planned is what
`GET /v1/qserve/memory` says of the plan: weights, cache, activations, runtime. Exit status 1 where a worker overruns
its share by more than 5 %.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import aiohttp
import psutil
from random_checkpoint import write_checkpoint
from reward import write_checkpoint as write_reward

MARKS = {"chat": "qserve.engines.transformers.worker", "reward": "qserve.reward"}
TERMS = ("weights_bytes", "kv_cache_bytes", "activations_bytes", "runtime_bytes")
ALLOWED = 1.05
_MIB = 1024**2


def held_bytes(pid: int, mark: str) -> int:
    """PSS of the worker that `qserve up` started as the module `mark`, and of its forks."""
    total = 0
    for process in psutil.Process(pid).children(recursive=True):
        with suppress(psutil.Error):
            if mark in process.cmdline():
                total += process.memory_full_info().pss
    return total


async def sample(pid: int, peaks: dict[str, int], stop: asyncio.Event) -> None:
    """Peaks of both workers until `stop`."""
    while not stop.is_set():
        for role, mark in MARKS.items():
            peaks[role] = max(peaks.get(role, 0), await asyncio.to_thread(held_bytes, pid, mark))
        await asyncio.sleep(0.2)


async def chat(session: aiohttp.ClientSession, model: str, until_s: float) -> int:
    """Prompts of all lengths; answers counted."""
    done = 0
    while time.monotonic() < until_s:
        body = {"model": model, "prompt": "one two three " * random.randint(1, 300), "max_tokens": 32}
        async with session.post("/v1/completions", json=body) as answer:
            done += answer.status == 200
            await answer.read()
    return done


async def reward(session: aiohttp.ClientSession, model: str, longest: int, until_s: float) -> int:
    """Several texts a request, now and then one of the longest; texts scored."""
    done = 0
    while time.monotonic() < until_s:
        lengths = [longest] if random.random() < 0.2 else [random.randint(1, longest // 4) for _ in range(8)]
        body = {"model": model, "token_ids": [[random.randrange(1000) for _ in range(length)] for length in lengths]}
        async with session.post("/v1/reward", json=body) as answer:
            assert answer.status == 200, await answer.text()
            done += len((await answer.json())["data"])
    return done


async def measure(url: str, pid: int, args: argparse.Namespace) -> dict[str, Any]:
    """Planned and measured bytes by role."""
    peaks: dict[str, int] = {}
    stop = asyncio.Event()
    async with aiohttp.ClientSession(url, timeout=aiohttp.ClientTimeout(600)) as session:
        async with session.get("/v1/qserve/memory") as answer:
            planned = {entry["worker"]: entry["planned"] for entry in (await answer.json())["data"]}
        idle = {role: held_bytes(pid, mark) for role, mark in MARKS.items()}
        sampling = asyncio.create_task(sample(pid, peaks, stop))
        longest = planned["reward"]["workload"]["max_model_len"]
        until_s = time.monotonic() + args.seconds
        answers = await asyncio.gather(
            *(chat(session, "chat", until_s) for _ in range(args.streams)),
            *(reward(session, "rm", longest, until_s) for _ in range(args.streams)),
        )
        stop.set()
        await sampling
    shares = {role: sum(plan["devices"][0][term] for term in TERMS) for role, plan in planned.items()}
    return {
        role: {
            "planned": {term: planned[role]["devices"][0][term] for term in TERMS},
            "planned_bytes": shares[role],
            "idle_bytes": idle[role],
            "peak_bytes": peaks[role],
            "of_plan": round(peaks[role] / shares[role], 3),
            "answers": sum(answers[: args.streams] if role == "chat" else answers[args.streams :]),
        }
        for role in MARKS
    }


def show(found: dict[str, Any]) -> None:
    """One line a worker."""
    for role, one in found.items():
        terms = ", ".join(f"{name.removesuffix('_bytes')} {value / _MIB:.0f}" for name, value in one["planned"].items())
        peak = f"peak {one['peak_bytes'] / _MIB:.0f} MiB: {100 * one['of_plan']:.1f} % of the plan"
        print(
            f"{role:<7} planned {one['planned_bytes'] / _MIB:.0f} MiB ({terms}), idle {one['idle_bytes'] / _MIB:.0f}, "
            f"{peak}, {one['answers']} answers"
        )


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--chat-shape", default="qwen3-85m")
    parser.add_argument("--reward-shape", default="qwen3-85m-body")
    parser.add_argument("--kv-cache-memory-bytes", default="256MiB")
    parser.add_argument("--max-length", type=int, default=4096, help="tokens of the longest scored text")
    parser.add_argument("--seconds", type=float, default=40)
    parser.add_argument("--streams", type=int, default=4, help="clients of each model")
    parser.add_argument("--folder", type=Path, help="where to keep the random checkpoints [a folder in the temp dir]")
    parser.add_argument("--json", type=Path, help="write all figures here")
    args = parser.parse_args()
    folder = args.folder or Path(tempfile.gettempdir()) / "qserve-bench-reward-memory"
    models = (
        write_checkpoint(folder / args.chat_shape, args.chat_shape),
        write_reward(folder / args.reward_shape, args.reward_shape),
    )
    with tempfile.TemporaryDirectory() as scratch:
        ready = Path(scratch) / "ready.json"
        command = [
            sys.executable,
            "-m",
            "qserve",
            "up",
            "--model",
            str(models[0]),
            "--reward",
            str(models[1]),
            "--port",
            "0",
            "--served-model-name",
            "chat",
            "--served-reward-name",
            "rm",
            "--engine",
            "transformers",
            "--kv-cache-memory-bytes",
            args.kv_cache_memory_bytes,
            "--max-model-len",
            "2048",
            "--max-length",
            str(args.max_length),
            "--state-dir",
            scratch,
            "--ready-file",
            str(ready),
        ]
        with subprocess.Popen(command) as up:
            try:
                while not ready.exists() and up.poll() is None:
                    time.sleep(0.2)
                found = asyncio.run(measure(json.loads(ready.read_text())["url"], up.pid, args))
            finally:
                up.terminate()
    show(found)
    if args.json:
        args.json.write_text(json.dumps(found, indent=2) + "\n")
    sys.exit(any(one["of_plan"] > ALLOWED for one in found.values()))


if __name__ == "__main__":
    main()
