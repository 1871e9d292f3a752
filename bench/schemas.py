"""Random JSON schemas over a served model: how many answers are valid.

    python bench/schemas.py --engine transformers     # 500 schemas, the demo on a CPU; under a minute
    python bench/schemas.py --engine vllm             # the same over vLLM; a minute more to start it
    python bench/schemas.py --engine vllm --engine-args "…"   # with vLLM's own flags, another backend say

Starts `qserve up --model demo` and asks for each schema once, as `response_format` without thoughts. An answer that the
limit of tokens cuts is counted by itself: a model may write a longer number than there is room for. Prints the first
schema of each kind of failure. Exit status: 0 where every answer that ended is valid, else 1.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import aiohttp
import jsonschema

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from bench.random_schemas import random_schemas
from bench.servers import Server, free_port, running, wait_ready

_FLAGS = {"transformers": (), "vllm": ("--dtype", "float32", "--enforce-eager", "--kv-cache-memory-bytes", "64MiB")}
_CHECKER = jsonschema.Draft202012Validator.FORMAT_CHECKER


def demo(engine: str, engine_args: str, state: Path, concurrency: int) -> Server:
    """`qserve up --model demo` on `engine`, with more flags of its own."""
    port = free_port()
    return Server(
        f"the demo on {engine}",
        [
            str(Path(sys.executable).parent / "qserve"),
            "up",
            "--model",
            "demo",
            "--engine",
            engine,
            "--port",
            str(port),
            "--state-dir",
            str(state),
            "--max-model-len",
            "1024",
            "--max-num-seqs",
            str(concurrency),
            *_FLAGS[engine],
            *(["--engine-args", engine_args] if engine_args else []),
        ],
        port,
        "demo",
        "/ready",
    )


async def outcome(session: aiohttp.ClientSession, server: Server, number: int, schema: dict[str, Any]) -> str:
    """`valid`, or what went wrong."""
    body = {
        "model": server.model,
        "messages": [{"role": "user", "content": f"What is {number} + 25?"}],
        "response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}},
        "reasoning_effort": "none",
        "temperature": 1.0,
        "seed": number,
        "max_tokens": 600,
        # A number or a pattern may have no upper bound, and the demo repeats itself: so each repetition gets rarer.
        "frequency_penalty": 1.0,
    }
    async with session.post(f"{server.url}/v1/chat/completions", json=body) as answer:
        reply = await answer.json()
    if answer.status != 200:
        return f"{answer.status}: {reply.get('error', reply)}"
    choice = reply["choices"][0]
    if choice["finish_reason"] == "length":
        return "cut by the limit of tokens"
    try:
        value = json.loads(choice["message"]["content"])
        jsonschema.Draft202012Validator(schema, format_checker=_CHECKER).validate(value)
    except (ValueError, jsonschema.ValidationError) as error:
        return f"invalid: {str(error).splitlines()[0]} in {choice['message']['content']!r}"
    return "valid"


async def outcomes_of(server: Server, log: Path, schemas: list[dict[str, Any]], concurrency: int) -> list[str]:
    """An outcome a schema, in their order."""
    places = asyncio.Semaphore(concurrency)
    with running(server, log) as process:
        await wait_ready(server, process, log)
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(300)) as session:

            async def one(number: int, schema: dict[str, Any]) -> str:
                async with places:
                    return await outcome(session, server, number, schema)

            return await asyncio.gather(*(one(*pair) for pair in enumerate(schemas)))


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", choices=sorted(_FLAGS), default="transformers")
    parser.add_argument("--engine-args", default="", help="more flags of vLLM")
    parser.add_argument("--num", type=int, default=500)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--concurrency", type=int, default=8)
    args = parser.parse_args()
    schemas = random_schemas(Random(args.seed), args.num)
    with tempfile.TemporaryDirectory(prefix="qserve-bench-") as name:
        server = demo(args.engine, args.engine_args, Path(name) / "state", args.concurrency)
        outcomes = asyncio.run(outcomes_of(server, Path(name) / "server.log", schemas, args.concurrency))
    kinds = Counter(result.partition(":")[0] for result in outcomes)
    print(f"{server.name}, {args.num} schemas: " + ", ".join(f"{count} {kind}" for kind, count in kinds.most_common()))
    for kind in kinds:
        if kind != "valid":
            number = next(index for index, result in enumerate(outcomes) if result.startswith(kind))
            print(f"{outcomes[number]}\n  {json.dumps(schemas[number], ensure_ascii=False)}")
    sys.exit(bool(set(kinds) - {"valid", "cut by the limit of tokens"}))


if __name__ == "__main__":
    main()
