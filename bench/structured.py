"""What structured output costs: the same load with and without a schema, in turns.

    python bench/structured.py                            # Qwen3-0.6B shape, random weights, 8 streams; ~3 minutes
    python bench/structured.py --shape tiny --rounds 2    # does it run?

Every answer has `--new-tokens` tokens, cut by their limit: free text with `ignore_eos`, and an object whose one string
is longer than that, so that a mask over the whole vocabulary is computed and laid on for each token. All schemas are
one schema: compiled in the first round, which warms up and does not count. Prints tokens a second, round by round, and
the ratio's median.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import aiohttp

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from bench.random_checkpoint import SHAPES, write_checkpoint
from bench.servers import Server, qserve_up, running, wait_ready

FREE: dict[str, Any] = {"ignore_eos": True}
SCHEMA = {
    "type": "object",
    "properties": {"text": {"type": "string", "minLength": 8192}},
    "required": ["text"],
    "additionalProperties": False,
}
STRUCTURED: dict[str, Any] = {
    "response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": SCHEMA}}
}


async def tokens_per_s(server: Server, fields: dict[str, Any], streams: int, new_tokens: int, seed: int) -> float:
    """Over all streams, from the first request to the last answer."""
    num_tokens = 0
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(900)) as session:

        async def ask(number: int) -> int:
            body = {
                "model": server.model,
                "messages": [{"role": "user", "content": f"{seed} {number}"}],
                "max_tokens": new_tokens,
                "temperature": 0,
                **fields,
            }
            async with session.post(f"{server.url}/v1/chat/completions", json=body) as answer:
                answer.raise_for_status()
                count: int = (await answer.json())["usage"]["completion_tokens"]
                return count

        start_s = time.perf_counter()
        num_tokens = sum(await asyncio.gather(*(ask(number) for number in range(streams))))
        return num_tokens / (time.perf_counter() - start_s)


async def measured(args: argparse.Namespace, folder: Path, logs: Path) -> None:
    """Rounds in turns, printed as they come."""
    server = qserve_up(folder, logs / "state", "bfloat16")
    ways = {"free text": FREE, "schema": STRUCTURED}
    taken: dict[str, list[float]] = {name: [] for name in ways}
    log = logs / "server.log"
    with running(server, log) as process:
        await wait_ready(server, process, log)
        for number in range(args.rounds + 1):
            for name in list(ways) if number % 2 else list(ways)[::-1]:
                rate = await tokens_per_s(server, ways[name], args.streams, args.new_tokens, number)
                if number:
                    taken[name].append(rate)
            if number:
                shown = ", ".join(f"{name} {rates[-1]:.1f}" for name, rates in taken.items())
                print(f"round {number}: {shown}", flush=True)
    ratios = [schema / free for free, schema in zip(taken["free text"], taken["schema"], strict=True)]
    spread = f"{min(ratios):.3f} to {max(ratios):.3f}"
    print(f"{args.streams} streams: with a schema {statistics.median(ratios):.3f} of the tokens a second ({spread})")


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=sorted(SHAPES), default="qwen3-0.6b")
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--new-tokens", type=int, default=48)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="qserve-bench-") as name:
        folder = write_checkpoint(
            Path(tempfile.gettempdir()) / f"qserve-bench-{re.sub('[^a-z0-9]+', '-', args.shape)}", args.shape
        )
        asyncio.run(measured(args, folder, Path(name)))


if __name__ == "__main__":
    main()
