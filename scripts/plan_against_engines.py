"""Plan against measured on this machine's CPU: random weights in real shapes, through a real engine.

    python scripts/plan_against_engines.py transformers qwen3-85m qwen3-0.6b qwen3-1.7b
    python scripts/plan_against_engines.py vllm qwen3-85m qwen3-0.6b qwen3-1.7b

Prints one line per term. For transformers it starts qserve's own worker and reads what that measures of itself after
every sequence was filled once and a prompt was scored; for vLLM the real OpenAI server, whose worker says what it
loaded (vllm_measured_worker.py), and the proportional memory of its processes.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import psutil

sys.path.insert(0, str(Path(__file__).parent.parent / "bench"))
from random_checkpoint import write_checkpoint

from qserve.detect import detect
from qserve.engines.vllm.launch.cpu_processes import joined_processes
from qserve.hub import resolve
from qserve.planner import Plan, PlanRequest, make_plan
from qserve.units import GIB, MIB
from qserve.worker.process import WorkerSpec

LENGTH, SEQS = 1024, 8
PORT = 18461
MARK = "QSERVE-STAGE "  # of vllm_measured_worker.py, which only vLLM's worker imports


def main() -> None:
    engine, *shapes = sys.argv[1:]
    for shape in shapes:
        folder = write_checkpoint(Path(tempfile.gettempdir()) / f"qserve-random-{shape}", shape)
        request = PlanRequest(
            engine=engine,
            max_model_len=LENGTH,
            max_num_seqs=SEQS,
            quant="bf16",  # type: ignore[arg-type]
            kv_cache_memory_bytes=GIB if engine == "vllm" else None,
        )
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
        worker = subprocess.Popen([sys.executable, "-m", "qserve.engines.transformers.worker", str(file)])
        try:
            return asyncio.run(_ask(spec, worker))
        finally:
            worker.terminate()
            worker.wait()


async def _ask(spec: WorkerSpec, worker: subprocess.Popen[bytes]) -> dict[str, float]:
    connector = aiohttp.UnixConnector(path=str(spec.socket))
    headers = {"Authorization": f"Bearer {spec.key}"}
    timeout = aiohttp.ClientTimeout(total=900)
    async with aiohttp.ClientSession("http://worker", connector=connector, headers=headers, timeout=timeout) as session:
        await _until_ready(session, worker)
        await _fill(session)
        # The plan counts the peak: filling, and scoring a prompt, which gives back most of what it takes.
        peak = _Peak(worker.pid)
        watching = asyncio.create_task(peak.watch())
        await _complete(session, {**_body(0), "max_tokens": 1, "echo": True, "logprobs": 1})
        watching.cancel()
        async with session.get("/v1/qserve/memory") as answer:
            memory: dict[str, Any] = await answer.json()
    return {
        "weights": memory["weights_bytes"],
        "KV tokens": memory["kv_cache_tokens"],
        "resident": max(peak.resident_bytes, memory["resident_bytes"]),
    }


class _Peak:
    """The most resident memory of a process while `watch` runs."""

    def __init__(self, pid: int) -> None:
        self._process = psutil.Process(pid)
        self.resident_bytes = 0

    async def watch(self) -> None:
        while True:
            self.resident_bytes = max(self.resident_bytes, self._process.memory_info().rss)
            await asyncio.sleep(0.005)


async def _until_ready(session: aiohttp.ClientSession, server: subprocess.Popen[bytes]) -> None:
    for _ in range(1200):
        try:
            async with session.get("/health") as answer:
                if answer.status == 200:
                    return
        except aiohttp.ClientError:
            pass
        if server.poll() is not None:
            break
        await asyncio.sleep(0.5)
    raise SystemExit("the engine did not become ready")


async def _fill(session: aiohttp.ClientSession) -> None:
    """Every sequence to its last token, all at once."""
    await asyncio.gather(*(_complete(session, _body(index)) for index in range(SEQS)))


def _body(index: int) -> dict[str, Any]:
    prompt = list(range(1000, 1000 + LENGTH - 8))
    return {"model": "m", "prompt": [*prompt[index:], *prompt[:index]], "max_tokens": 4}


async def _complete(session: aiohttp.ClientSession, body: dict[str, Any]) -> None:
    async with session.post("/v1/completions", json=body) as answer:
        if answer.status != 200:
            raise SystemExit(await answer.text())


def _vllm(folder: Path, plan: Plan) -> dict[str, float]:
    log_file = Path(tempfile.gettempdir()) / f"{folder.name}-vllm.log"
    command = [
        sys.executable,
        "-m",
        "vllm.entrypoints.launchers.api_server.entry",
        "--model",
        str(folder),
        "--port",
        str(PORT),
        "--worker-cls",
        "vllm_measured_worker.MeasuredWorker",
        "--served-model-name",
        "m",
        "--enforce-eager",
        *(arg for arg in plan.engine_args if arg != "--enforce-eager"),
    ]
    settings = {
        "VLLM_CPU_KVCACHE_SPACE": str(plan.placement.kv_cache_memory_bytes // GIB),
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "PYTHONPATH": str(Path(__file__).parent),
        **joined_processes(plan, plan.engine_args, os.environ),
    }
    with log_file.open("w") as log:
        server = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, **settings})
    try:
        asyncio.run(_fill_vllm(server))
        text = log_file.read_text()
        stages = [json.loads(line.split(MARK)[1]) for line in text.splitlines() if MARK in line]
        _print_processes(server.pid, stages)
        tokens = re.search(r"KV cache size: ([\d,]+) tokens", text)
        assert tokens is not None
        weights = next(stage["weights_bytes"] for stage in stages if stage["stage"] == "weights")
        return {"weights": weights, "KV tokens": float(tokens[1].replace(",", "")), "resident": _pss(server.pid)}
    except SystemExit:
        print(log_file.read_text()[-3000:])
        raise
    finally:
        server.terminate()
        server.wait()


async def _fill_vllm(server: subprocess.Popen[bytes]) -> None:
    """Wait until it answers, then fill every sequence to max_model_len once."""
    timeout = aiohttp.ClientTimeout(total=1800)
    async with aiohttp.ClientSession(f"http://127.0.0.1:{PORT}", timeout=timeout) as session:
        await _until_ready(session, server)
        await _fill(session)


def _tree(pid: int) -> list[psutil.Process]:
    return [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]


def _pss(pid: int) -> float:
    """Memory of the process tree; pages that several of them share count once."""
    return float(sum(process.memory_full_info().pss for process in _tree(pid)))


def _print_processes(pid: int, stages: list[dict[str, Any]]) -> None:
    """What each process holds, and how the worker's private memory grew: where the planner's terms come from."""
    for process in _tree(pid):
        memory = process.memory_full_info()
        command = " ".join(process.cmdline())[:48]
        print(f"  {process.pid:8d} pss {memory.pss / MIB:8.1f} private {memory.uss / MIB:8.1f} MiB  {command}")
    for stage in stages:
        print(f"  after {stage['stage']:12s} private {stage['uss_bytes'] / MIB:8.1f} MiB", end="")
        print(f"  tensors {stage['weights_bytes'] / MIB:8.1f}" if "weights_bytes" in stage else "")


main()
