"""Tokens a second at 8 streams: qserve's transformers worker, `transformers serve`, and `generate` at batch 8.

    python bench/throughput.py                     # Qwen3-0.6B shape, random weights, bf16
    python bench/throughput.py --rounds 5 --streams 16

All three are loaded at once and take turns, round by round, so that a machine whose speed drifts is unfair to none of
them. Every stream has a prompt of its own, so no prefix cache helps anyone. Prints medians, ratios, and the share of
what the machine could do at best: the bytes of the weights over the measured memory bandwidth for each decoding step,
the operations of the prompts over the measured rate of a large matrix product.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import re
import signal
import socket
import statistics
import string
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import aiohttp
from random_checkpoint import SHAPES, write_checkpoint

PROMPT_TOKENS = 128
TEMPLATE_TOKENS = 21  # what the chat template of random_checkpoint.py adds; the script checks it


def prompt_text(rng: random.Random) -> str:
    """Letters of which each is one token of the checkpoint's byte-level tokenizer."""
    return "".join(rng.choices(string.ascii_letters, k=PROMPT_TOKENS - TEMPLATE_TOKENS))


async def load_round(url: str, model: str, prompts: list[str], new_tokens: int) -> float:
    """Output tokens a second over all streams, from the first request to the last token."""
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(600)) as session:

        async def stream(prompt: str) -> int:
            body = {
                "model": model,
                "messages": [{"role": "user", "content": prompt}],
                "max_tokens": new_tokens,
                "temperature": 0,
                "stream": True,
            }
            num_chunks = 0
            async with session.post(f"{url}/v1/chat/completions", json=body) as answer:
                answer.raise_for_status()
                async for line in answer.content:
                    if line.startswith(b"data: {"):
                        delta = json.loads(line[6:])["choices"]
                        num_chunks += bool(delta and delta[0]["delta"].get("content"))
            return num_chunks

        start = time.perf_counter()
        counts = await asyncio.gather(*(stream(prompt) for prompt in prompts))
        elapsed = time.perf_counter() - start
    short = [count for count in counts if count != new_tokens]
    if short:
        print(f"  note: {len(short)} streams gave {short} text chunks instead of {new_tokens}; tokens count as asked")
    return len(prompts) * new_tokens / elapsed


def generate_worker(folder: str) -> None:
    """A child: loads the model, then answers each line `streams new_tokens seed` with generate's tokens a second."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).eval()
    print("ready", flush=True)
    for line in sys.stdin:
        streams, new_tokens, seed = map(int, line.split())
        torch.manual_seed(seed)
        ids = torch.randint(0, 100_000, (streams, PROMPT_TOKENS))
        start = time.perf_counter()
        with torch.inference_mode():
            out = model.generate(
                input_ids=ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=new_tokens,
                min_new_tokens=new_tokens,
                do_sample=False,
            )
        assert out.shape[1] == PROMPT_TOKENS + new_tokens
        print(streams * new_tokens / (time.perf_counter() - start), flush=True)


def machine_limits(shape: str) -> tuple[float, float]:
    """Measured now: bytes a second that a bf16 matrix-vector product reads, operations a second at 1024 rows."""
    import torch

    hidden, inner = SHAPES[shape]["hidden_size"], SHAPES[shape]["intermediate_size"]
    # Larger than the last-level cache together, as a model's weights are.
    weights = [torch.randn(inner * 8, hidden, dtype=torch.bfloat16) for _ in range(8)]
    row, rows = torch.randn(1, hidden, dtype=torch.bfloat16), torch.randn(1024, hidden, dtype=torch.bfloat16)

    def best(x: torch.Tensor, used: list[torch.Tensor]) -> float:
        seconds = []
        for _ in range(4):
            start = time.perf_counter()
            for weight in used:
                torch.nn.functional.linear(x, weight)
            seconds.append(time.perf_counter() - start)
        return min(seconds)

    read = sum(w.nbytes for w in weights) / best(row, weights)
    operations = 2 * 1024 * weights[0].numel() / best(rows, weights[:1])
    return read, operations


def free_port() -> int:
    """A port that nobody has right now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def running(command: list[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A server in a group of its own, ended with its whole group."""
    with log.open("wb") as out:
        process = subprocess.Popen(
            command,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={**os.environ, "HF_HUB_OFFLINE": "1"},
        )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)


async def wait_ready(url: str, path: str, process: subprocess.Popen[bytes], log: Path) -> None:
    """Until `path` answers 200; ends the benchmark with the server's log when it died."""
    async with aiohttp.ClientSession() as session:
        while True:
            if process.poll() is not None:
                sys.exit(f"{process.args} ended:\n{log.read_text()[-3000:]}")
            with contextlib.suppress(aiohttp.ClientError, OSError):
                async with session.get(url + path) as answer:
                    if answer.status == 200:
                        return
            await asyncio.sleep(0.3)


def summary(rates: dict[str, list[float]], args: argparse.Namespace) -> dict[str, object]:
    """Medians and ratios; ratios are taken round by round and then their median, so that drift cancels."""
    ours = rates["qserve"]
    ratios = {
        name: statistics.median(a / b for a, b in zip(ours, other, strict=True))
        for name, other in rates.items()
        if name != "qserve"
    }
    read, operations = machine_limits(args.shape)
    dims = SHAPES[args.shape]
    body = _body_parameters(dims)
    head = dims["vocab_size"] * dims["hidden_size"]
    prefill_s = args.streams * PROMPT_TOKENS * 2 * body / operations
    decode_s = args.new_tokens * 2 * (body + head) / read
    limit = args.streams * args.new_tokens / (prefill_s + decode_s)
    medians = {name: statistics.median(values) for name, values in rates.items()}
    return {
        "shape": args.shape,
        "streams": args.streams,
        "prompt_tokens": PROMPT_TOKENS,
        "new_tokens": args.new_tokens,
        "rounds": args.rounds,
        "tokens_per_s": rates,
        "median_tokens_per_s": medians,
        "ratio_qserve_to": ratios,
        "machine": {"read_bytes_per_s": read, "gemm_flop_per_s": operations, "limit_tokens_per_s": limit},
        "share_of_limit": {name: value / limit for name, value in medians.items()},
    }


def _body_parameters(dims: dict[str, int]) -> int:
    hidden, heads, kv_heads = dims["hidden_size"], dims["num_attention_heads"], dims["num_key_value_heads"]
    attention = hidden * dims["head_dim"] * (2 * heads + 2 * kv_heads)
    return int(dims["num_hidden_layers"] * (attention + 3 * hidden * dims["intermediate_size"]))


def show(result: dict[str, object]) -> None:
    """The table that a reader wants."""
    medians, ratios = result["median_tokens_per_s"], result["ratio_qserve_to"]
    shares, machine = result["share_of_limit"], result["machine"]
    assert isinstance(medians, dict)
    assert isinstance(ratios, dict)
    assert isinstance(shares, dict)
    assert isinstance(machine, dict)
    print(f"\n{'':28}{'tokens/s':>10}{'of the limit':>14}{'qserve is':>12}")
    for name, value in medians.items():
        ratio = f"{ratios[name]:.2f} ×" if name in ratios else ""
        print(f"{name:28}{value:10.1f}{100 * shares[name]:12.0f} %{ratio:>12}")
    print(
        f"limit {machine['limit_tokens_per_s']:.1f} tokens/s: reads {machine['read_bytes_per_s'] / 1e9:.1f} GB/s "
        f"(one row), {machine['gemm_flop_per_s'] / 1e9:.0f} GFLOP/s (1024 rows), measured in this run"
    )


async def measure(args: argparse.Namespace, folder: Path, logs: Path) -> dict[str, object]:
    """Start all, warm each, then take turns."""
    bin_folder = Path(sys.executable).parent
    ours, theirs = (f"http://127.0.0.1:{free_port()}" for _ in range(2))
    up = [
        str(bin_folder / "qserve"), "up", "--model", str(folder), "--served-model-name", "bench", "--dtype", "bfloat16",
        "--port", ours.rsplit(":", 1)[1], "--max-model-len", "1024", "--max-num-seqs", "64",
        "--state-dir", str(logs / "state"),
    ]  # fmt: skip
    serve = [
        str(bin_folder / "transformers"), "serve", str(folder), "--continuous-batching", "--device", "cpu",
        "--dtype", "bfloat16", "--cb-num-blocks", "256", "--cb-block-size", "32", "--cb-max-batch-tokens", "1024",
        "--port", theirs.rsplit(":", 1)[1],
    ]  # fmt: skip
    generate = [sys.executable, __file__, "--generate-worker", str(folder)]
    rates: dict[str, list[float]] = {"qserve": [], "transformers serve (CB)": [], "generate, one batch": []}
    with contextlib.ExitStack() as stack:
        up_process = stack.enter_context(running(up, logs / "up.log"))
        serve_process = stack.enter_context(running(serve, logs / "serve.log"))
        child = stack.enter_context(
            subprocess.Popen(
                generate, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
            )
        )
        stack.callback(child.kill)
        assert child.stdin is not None
        assert child.stdout is not None
        assert child.stdout.readline().strip() == "ready"
        await wait_ready(ours, "/ready", up_process, logs / "up.log")
        await wait_ready(theirs, "/health", serve_process, logs / "serve.log")
        for number in range(args.rounds + 1):  # the first warms up and does not count
            rng = random.Random(number)
            prompts = [prompt_text(rng) for _ in range(args.streams)]
            child.stdin.write(f"{args.streams} {args.new_tokens} {number}\n")
            child.stdin.flush()
            figures = [
                float(child.stdout.readline()),
                await load_round(theirs, str(folder), prompts, args.new_tokens),
                await load_round(ours, "bench", prompts, args.new_tokens),
            ]
            line = dict(zip(("generate, one batch", "transformers serve (CB)", "qserve"), figures, strict=True))
            print(f"round {number or 'warm-up'}: " + ", ".join(f"{k} {v:.1f}" for k, v in line.items()), flush=True)
            if number:
                for name, value in line.items():
                    rates[name].append(value)
        child.kill()
    return summary(rates, args)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=sorted(SHAPES), default="qwen3-0.6b")
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--new-tokens", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--checkpoint", type=Path, help="where to keep the random checkpoint [a folder in the temp dir]"
    )
    parser.add_argument("--json", type=Path, help="write all figures here")
    parser.add_argument("--generate-worker", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.generate_worker:
        generate_worker(args.generate_worker)
        return
    # A benchmark that is told to stop must not leave its servers behind.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    folder = args.checkpoint or Path(tempfile.gettempdir()) / f"qserve-bench-{re.sub('[^a-z0-9]+', '-', args.shape)}"
    write_checkpoint(folder, args.shape)
    with tempfile.TemporaryDirectory() as logs:
        result = asyncio.run(measure(args, folder, Path(logs)))
    show(result)
    if args.json:
        args.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
