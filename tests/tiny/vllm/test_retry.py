"""A plan that vLLM refuses for memory is tried once more with vLLM's own number, told, and then it serves."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from qserve.demo import chat_model_path
from qserve.detect import detect
from qserve.engine.base import Api, UnixAddress, WorkerEndpoint, WorkerState
from qserve.engine.process import WorkerSpec
from qserve.engine.vllm.launch import VllmLaunch
from qserve.hub import resolve
from qserve.planner import Plan, make_plan, plan_request
from qserve.supervisor.worker import SupervisedWorker
from qserve.units import MIB
from tests.tiny.serving.vllm_processes import NOT_COMPILED

CACHE_BYTES = 2 * MIB


def overdrawn() -> Plan:
    """A plan with a cache that is smaller than one request: as if the planner had been wrong."""
    limits = {"max_model_len": 2048, "max_num_seqs": 8, "max_num_batched_tokens": 512}
    request = plan_request(engine="vllm", quant="bf16", enforce_eager=True, kv_cache_memory_bytes=64 * MIB, **limits)
    plan = make_plan(resolve("demo"), replace(detect(), devices=()), request)
    flag = plan.engine_args.index("--kv-cache-memory-bytes") + 1
    arguments = (*plan.engine_args[:flag], str(CACHE_BYTES), *plan.engine_args[flag + 1 :])
    placement = replace(plan.placement, kv_cache_memory_bytes=CACHE_BYTES)
    return replace(plan, placement=placement, engine_args=arguments)


async def test_one_retry_with_the_length_that_vllm_reports(
    parser: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in NOT_COMPILED.items():
        monkeypatch.setenv(name, value)
    heard: list[tuple[str, dict[str, Any]]] = []
    socket, key = tmp_path / "chat.sock", "internal"
    endpoint = WorkerEndpoint("chat", ("demo",), UnixAddress(socket), key, 1, 2048, api=Api.VLLM, engine="vllm")
    spec = WorkerSpec(chat_model_path(), ("demo",), overdrawn(), socket, key)
    worker = SupervisedWorker(
        endpoint,
        VllmLaunch(spec, "", parser),
        tmp_path / "chat.log",
        lambda _, event, told: heard.append((event, told)),
    )
    try:
        await worker.start()
        (retry,) = [told for event, told in heard if event == "retry"]
        assert "--max-model-len" in retry["reason"]
        assert "Planned on" in retry["refused"], "the plan's numbers stand beside vLLM's"
        assert endpoint.state is WorkerState.READY
        assert 512 <= endpoint.max_model_len < 2048
        assert endpoint.max_model_len == worker.launch.plan.workload.max_model_len
        assert worker.launch.notes
        memory = await worker.memory()
        assert memory["kv_cache_tokens"] >= endpoint.max_model_len
        body = json.dumps({"model": "demo", "prompt": "a", "max_tokens": 2}).encode()
        status, answer = await worker._ask("POST", "/v1/completions", body)
        assert (status, json.loads(answer)["usage"]["completion_tokens"]) == (200, 2)
    finally:
        await worker.stop()
