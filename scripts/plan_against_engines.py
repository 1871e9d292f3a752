"""Plan against measured on this machine's CPU: random weights in real shapes, through a real engine.

    python scripts/plan_against_engines.py transformers qwen3-85m qwen3-0.6b qwen3-1.7b
    python scripts/plan_against_engines.py vllm qwen3-0.6b

Prints one line per term. For transformers it starts qserve's own worker and reads what that measures of itself after
every sequence was filled once; for vLLM the real OpenAI server, and reads its log and /proc.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import psutil

sys.path.insert(0, str(Path(__file__).parent.parent / "bench"))
from random_checkpoint import write_checkpoint

from qserve.detect import detect
from qserve.engine.process import WorkerSpec
from qserve.hub import resolve
from qserve.planner import Plan, PlanRequest, make_plan
from qserve.units import GIB, MIB

LENGTH, SEQS = 1024, 8


def main() -> None:
    engine, *shapes = sys.argv[1:]
    for shape in shapes:
        folder = write_checkpoint(Path(tempfile.gettempdir()) / f"qserve-random-{shape}", shape)
        request = PlanRequest(
            engine=engine, max_model_len=LENGTH, max_num_seqs=SEQS, quant="bf16",  # type: ignore[arg-type]
            kv_cache_memory_bytes=GIB if engine == "vllm" else None,
        )  # fmt: skip
        plan = make_plan(resolve(str(folder)), replace(detect(), devices=()), request)
        if not plan.fits:
            print(f"{shape}: {plan.why_not}")
            continue
        measured = _transformers(folder, plan) if engine == "transformers" else _vllm(folder, plan)
        _print(shape, plan, measured)


def _print(shape: str, plan: Plan, measured: dict[str, float]) -> None:
    device = plan.devices[0]
    resident = device.weights_bytes + device.kv_cache_bytes + device.activations_bytes + device.runtime_bytes
    planned = {"weights": device.weights_bytes, "KV tokens": plan.kv_cache_tokens, "resident": resident}
    for term, value in measured.items():
        error = planned[term] / value - 1
        unit = 1 if term == "KV tokens" else MIB
        print(f"{shape:12s} {term:10s} planned {planned[term] / unit:10.1f} measured {value / unit:10.1f} {error:+.2%}")


def _transformers(folder: Path, plan: Plan) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as private:
        spec = WorkerSpec(folder, ("m",), plan, Path(private) / "s", "key")
        file = Path(private) / "spec.json"
        file.write_text(json.dumps(spec.to_json()))
        worker = subprocess.Popen([sys.executable, "-m", "qserve.engine.transformers", str(file)])
        try:
            return asyncio.run(_ask(spec))
        finally:
            worker.terminate()
            worker.wait()


async def _ask(spec: WorkerSpec) -> dict[str, float]:
    connector = aiohttp.UnixConnector(path=str(spec.socket))
    headers = {"Authorization": f"Bearer {spec.key}"}
    timeout = aiohttp.ClientTimeout(total=900)
    async with aiohttp.ClientSession(connector=connector, headers=headers, timeout=timeout) as session:
        await _until_ready(session)
        prompt = list(range(1000, 1000 + LENGTH - 8))
        bodies = [{"model": "m", "prompt": [*prompt[i:], *prompt[:i]], "max_tokens": 4} for i in range(SEQS)]
        await asyncio.gather(*(_complete(session, body) for body in bodies))
        async with session.get("http://worker/v1/qserve/memory") as answer:
            memory: dict[str, Any] = await answer.json()
    return {
        "weights": memory["weights_bytes"],
        "KV tokens": memory["kv_cache_tokens"],
        "resident": memory["resident_bytes"],
    }


async def _until_ready(session: aiohttp.ClientSession) -> None:
    for _ in range(600):
        try:
            async with session.get("http://worker/health") as answer:
                if answer.status == 200:
                    return
        except aiohttp.ClientError:
            pass
        await asyncio.sleep(0.5)
    raise SystemExit("the worker did not become ready")


async def _complete(session: aiohttp.ClientSession, body: dict[str, Any]) -> None:
    async with session.post("http://worker/v1/completions", json=body) as answer:
        if answer.status != 200:
            raise SystemExit(await answer.text())


def _vllm(folder: Path, plan: Plan) -> dict[str, float]:
    log_file = Path(tempfile.gettempdir()) / "qserve-vllm.log"
    command = [
        sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(folder), "--port", "18461",
        "--enforce-eager", *(arg for arg in plan.engine_args if arg != "--enforce-eager"),
    ]  # fmt: skip
    space = str(plan.placement.kv_cache_memory_bytes // GIB)
    settings = {"VLLM_CPU_KVCACHE_SPACE": space, "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
    with log_file.open("w") as log:
        server = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, **settings})
    try:
        for _ in range(600):
            text = log_file.read_text()
            if "Application startup complete" in text or server.poll() is not None:
                break
            time.sleep(1)
        tokens = re.search(r"KV cache size: ([\d,]+) tokens", text)
        if tokens is None:
            raise SystemExit(text[-3000:])
        processes = [psutil.Process(server.pid), *psutil.Process(server.pid).children(recursive=True)]
        resident = sum(process.memory_info().rss for process in processes)
        weights = re.search(r"[Mm]odel loading took ([\d.]+) GiB", text)
        found = {"KV tokens": float(tokens[1].replace(",", "")), "resident": float(resident)}
        return {**({"weights": float(weights[1]) * GIB} if weights else {}), **found}
    finally:
        server.terminate()
        server.wait()


main()
