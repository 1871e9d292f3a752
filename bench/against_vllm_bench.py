"""`qserve bench` and `vllm bench serve` on one real vLLM server, the same load, one after the other.

    python bench/against_vllm_bench.py                  # about 4 minutes on 2 cores
    python bench/against_vllm_bench.py --rounds 5 --concurrency 16
    python bench/against_vllm_bench.py --fake           # a server of set latencies: are the definitions the same?

Both send the same prompts from one file; the server caches no prefixes, so that it does not matter who asks first.
They take turns, round by round in another order. Prints medians over rounds of each one's medians, and their
difference; exit status 1 where one is over 5 %.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import json
import random
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from bench.random_checkpoint import write_checkpoint
from bench.servers import Server, running, vllm_cpu, wait_ready
from qserve.bench.counting import local_counter
from qserve.bench.prompts import TextMaker
from qserve.bench.self_test import fake_server

NAMES = {"median_ttft_ms": "TTFT ms", "median_tpot_ms": "TPOT ms", "output_throughput": "output tokens/s"}
LIMIT = 0.05
ROUTES = {"chat": ("openai-chat", "/v1/chat/completions"), "completions": ("openai", "/v1/completions")}


@dataclasses.dataclass(frozen=True)
class Load:
    """What both are told."""

    endpoint: str
    concurrency: int
    num_prompts: int
    input_len: int
    output_len: int


def vllm_worker() -> None:
    """A child that imports vLLM once: each line is the arguments of one `vllm bench serve`, as a JSON list."""
    from vllm.benchmarks.serve import add_cli_args, main_async
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    parser = FlexibleArgumentParser()
    add_cli_args(parser)
    real_stdout = sys.stdout
    sys.stdout = sys.stderr  # it prints a report of its own
    print("ready", file=real_stdout, flush=True)
    for line in sys.stdin:
        asyncio.run(main_async(parser.parse_args(json.loads(line))))
        print("done", file=real_stdout, flush=True)


def by_vllm(child: subprocess.Popen[str], server: Server, load: Load, prompts: Path, folder: Path) -> dict[str, Any]:
    """One `vllm bench serve`."""
    backend, path = ROUTES[load.endpoint]
    arguments = [
        "--backend",
        backend,
        "--endpoint",
        path,
        "--base-url",
        server.url,
        "--model",
        server.model,
        "--tokenizer",
        str(folder),
        "--dataset-name",
        "custom",
        "--dataset-path",
        str(prompts),
        "--custom-output-len",
        str(load.output_len),
        "--skip-chat-template",
        "--num-prompts",
        str(load.num_prompts),
        "--max-concurrency",
        str(load.concurrency),
        "--num-warmups",
        "2",
        "--ignore-eos",
        "--temperature",
        "0",
        "--disable-tqdm",
        "--save-result",
        "--result-dir",
        str(prompts.parent),
        "--result-filename",
        "vllm.json",
    ]
    assert child.stdin is not None
    assert child.stdout is not None
    child.stdin.write(json.dumps(arguments) + "\n")
    child.stdin.flush()
    if child.stdout.readline().strip() != "done":
        sys.exit(f"vllm bench serve failed; its log is {prompts.parent / 'vllm.log'}")
    return json.loads((prompts.parent / "vllm.json").read_text())


def by_qserve(server: Server, load: Load, prompts: Path) -> dict[str, Any]:
    """One `qserve bench`."""
    output = prompts.parent / "qserve.json"
    command = [
        sys.executable,
        "-m",
        "qserve",
        "bench",
        "--url",
        server.url,
        "--endpoint",
        load.endpoint,
        "--dataset",
        str(prompts),
        "--output-len",
        str(load.output_len),
        "--num-prompts",
        str(load.num_prompts),
        "--concurrency",
        str(load.concurrency),
        "--num-warmups",
        "2",
        "--ignore-eos",
        "--output",
        str(output),
    ]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return json.loads(output.read_text())["stages"][0]


def write_prompts(folder: Path, load: Load, seed: int, file: Path) -> None:
    """JSON lines of texts of exactly `input_len` tokens, new ones for each seed."""
    maker, rng = TextMaker(local_counter(folder)), random.Random(seed)
    lines = [json.dumps({"prompt": maker.text(load.input_len, rng)}) for _ in range(load.num_prompts)]
    file.write_text("\n".join(lines) + "\n")


def compare(load: Load, rounds: list[tuple[dict[str, Any], dict[str, Any]]]) -> bool:
    """Prints a table as Markdown; whether all differences are within the limit."""
    print(
        f"\n{load.endpoint}, {load.concurrency} at once, {load.num_prompts} × ({load.input_len} + {load.output_len})\n"
    )
    print("| | qserve bench | vllm bench serve | difference | round by round |\n|---|---:|---:|---:|---|")
    good = True
    for key, name in NAMES.items():
        ours, theirs = ([one[side][key] for one in rounds] for side in (0, 1))
        own, other = statistics.median(ours), statistics.median(theirs)
        each = ", ".join(f"{100 * (one / two - 1):+.1f}" for one, two in zip(ours, theirs, strict=True))
        print(f"| {name} | {own:.2f} | {other:.2f} | {100 * (own / other - 1):+.1f} % | {each} |", flush=True)
        good = good and abs(own / other - 1) <= LIMIT
    return good


@contextlib.asynccontextmanager
async def served(arguments: argparse.Namespace, folder: Path, log: Path) -> AsyncIterator[Server]:
    """The server that both load, ready."""
    if arguments.fake:
        with fake_server(60.0, 15.0) as url:
            yield Server("fake", [], int(url.rpartition(":")[2]), "fake", "/v1/models")
        return
    server = vllm_cpu(folder, "bfloat16", eager=True)
    server = dataclasses.replace(server, command=[*server.command, "--no-enable-prefix-caching"])
    with running(server, log) as process:
        await wait_ready(server, process, log)
        yield server


async def measure(arguments: argparse.Namespace, folder: Path, logs: Path) -> bool:
    """Every load in turns."""
    prompts = logs / "prompts.jsonl"
    good = True
    with (logs / "vllm.log").open("w") as vllm_log:
        child = subprocess.Popen(
            [sys.executable, __file__, "--vllm-worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=vllm_log,
            text=True,
        )
        try:
            assert child.stdout is not None
            if child.stdout.readline().strip() != "ready":
                sys.exit(f"vLLM's benchmark did not start; its log is {logs / 'vllm.log'}")
            async with served(arguments, folder, logs / "server.log") as server:
                print(f"{server.name} and clients are ready", flush=True)
                for load in arguments.loads:
                    rounds = []
                    for turn in range(arguments.rounds):
                        write_prompts(folder, load, 100 * load.concurrency + turn, prompts)
                        if turn % 2:
                            theirs = by_vllm(child, server, load, prompts, folder)
                            ours = by_qserve(server, load, prompts)
                        else:
                            ours = by_qserve(server, load, prompts)
                            theirs = by_vllm(child, server, load, prompts, folder)
                        rounds.append((ours, theirs))
                        both = ", ".join(f"{name} {ours[key]:.1f} and {theirs[key]:.1f}" for key, name in NAMES.items())
                        print(f"{load.endpoint}, {load.concurrency} at once, round {turn + 1}: {both}", flush=True)
                    good = compare(load, rounds) and good
        finally:
            child.kill()
            child.wait()
    return good


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="qwen3-85m")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--endpoint", choices=sorted(ROUTES), nargs="+", default=["completions", "chat"])
    parser.add_argument("--input-len", type=int, default=384)
    parser.add_argument("--output-len", type=int, default=32)
    parser.add_argument("--prompts-per-stream", type=int, default=3)
    parser.add_argument("--fake", action="store_true", help="load qserve's fake server: 60 ms, then 15 ms a token")
    parser.add_argument("--keep", type=Path, help="keep logs and results here")
    parser.add_argument("--vllm-worker", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.vllm_worker:
        vllm_worker()
        return
    arguments.loads = [
        Load(
            endpoint,
            concurrency,
            max(6, arguments.prompts_per_stream * concurrency),
            arguments.input_len,
            arguments.output_len,
        )
        for endpoint in arguments.endpoint
        for concurrency in arguments.concurrency
    ]
    # A benchmark that is told to stop must not leave its server behind.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    folder = Path(tempfile.gettempdir()) / f"qserve-bench-{arguments.shape.replace('.', '-')}"
    write_checkpoint(folder, arguments.shape)
    with tempfile.TemporaryDirectory() as temporary:
        logs = arguments.keep or Path(temporary)
        logs.mkdir(parents=True, exist_ok=True)
        sys.exit(0 if asyncio.run(measure(arguments, folder, logs)) else 1)


if __name__ == "__main__":
    main()
