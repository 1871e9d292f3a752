"""Attacks on the machine: its connections, its processes, its commands."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import aiohttp

from attacks.service import Attack, Service

__all__ = ["ATTACKS", "hostile_folder", "slow_heads", "stopped_worker"]

_SLOW_HEADS = Path(__file__).absolute().parent.parent / "slow_heads.py"


async def slow_heads(service: Service) -> str:
    """2,000 connections that never finish a head, at 64 descriptors; ten requests of a client that connects anew."""
    port = service.url.rpartition(":")[2]
    command = [sys.executable, str(_SLOW_HEADS), port, "2000"]
    url, headers = f"{service.url}/v1/models", {"authorization": f"Bearer {service.other_key}", "connection": "close"}
    answered: list[float] = []
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as slow:
        await asyncio.sleep(5)
        for _ in range(10):
            with suppress(aiohttp.ClientError, TimeoutError, OSError):
                began_s = time.monotonic()
                async with asyncio.timeout(10), aiohttp.request("GET", url, headers=headers) as one:
                    assert one.status == 200
                    answered.append(time.monotonic() - began_s)
        slow.kill()
    return f"{len(answered)} of 10 answered" + (f", the slowest after {max(answered):.2f} s" if answered else "")


async def stopped_worker(service: Service) -> str:
    """SIGSTOP for the chat worker with requests in flight: until the honest stream is told."""
    service.worker("qserve.engines.transformers.worker").suspend()
    began_s = time.monotonic()
    status, seconds = await service.post("/v1/completions", {"model": "demo", "prompt": "x", "max_tokens": 8})
    return f"told {status} after {seconds:.1f} s, by {time.monotonic() - began_s:.1f} s"


async def hostile_folder(service: Service) -> str:
    """`qserve plan` on three folders: a billion layers, a FIFO for weights, a config nested 100,000 deep."""
    outcomes = []
    for name, make in _FOLDERS.items():
        with tempfile.TemporaryDirectory() as folder:
            make(Path(folder))
            began_s = time.monotonic()
            command = [str(Path(service.process.args[0])), "plan", "--model", folder]  # type: ignore[index, arg-type]
            process = await asyncio.create_subprocess_exec(
                *command,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30)),
            )
            try:
                _, stderr = await asyncio.wait_for(process.communicate(), 60)
                how = "a traceback" if b"Traceback" in stderr else f"status {process.returncode}"
            except TimeoutError:
                process.kill()
                how = "never"
            outcomes.append(f"{name}: {how} after {time.monotonic() - began_s:.1f} s")
    return "; ".join(outcomes)


def _config(**fields: Any) -> str:
    dimensions = {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2}
    base = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "vocab_size": 512, "num_hidden_layers": 2}
    return json.dumps({**base, **dimensions, **fields})


def _billion_layers(folder: Path) -> None:
    (folder / "config.json").write_text(_config(num_hidden_layers=10**9))


def _fifo(folder: Path) -> None:
    (folder / "config.json").write_text(_config())
    os.mkfifo(folder / "model.safetensors")


def _nested(folder: Path) -> None:
    (folder / "config.json").write_text(_config()[:-1] + ', "x": ' + "[" * 100_000 + "]" * 100_000 + "}")


_FOLDERS = {"layers": _billion_layers, "FIFO": _fifo, "nested": _nested}
ATTACKS: tuple[Attack, ...] = (slow_heads, stopped_worker, hostile_folder)
