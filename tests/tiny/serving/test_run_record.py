"""A real `qserve up` is written down as it runs: what it was, held and answered is known after kill -9.

And kill -9 of it leaves no worker.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable
from typing import Any

import httpx
import psutil

from qserve.runs import RunStore
from tests.tiny.serving.served import QSERVE, START_LIMIT_S, Service, until


def chat_report(client: httpx.Client) -> dict[str, Any]:
    told: dict[str, Any] = client.get("/v1/qserve/report").json()["data"][0]
    return told


def test_what_was_served_is_known_after_kill_9_and_the_next_plan_learns_it(start: Callable[..., Service]) -> None:
    service = start("--api-key", "secret-of-this-test").until_ready()
    headers = {"authorization": "Bearer secret-of-this-test"}
    body = {"model": "demo", "messages": [{"role": "user", "content": "What is 12+30?"}], "max_tokens": 8}
    with httpx.Client(base_url=service.url, headers=headers, timeout=120) as client:
        told = client.get("/v1/qserve/report").json()
        assert "latency" not in told["data"][0], "nothing was asked yet"
        streamed = {**body, "stream": True, "stream_options": {"include_usage": True}}
        answers = [client.post("/v1/chat/completions", json=each) for each in (streamed, body, body)]
        answered = [answer.json()["usage"]["completion_tokens"] for answer in answers[1:]]
        assert client.post("/v1/chat/completions", json={**body, "model": "nobody"}).status_code == 404
        httpx.post(f"{service.url}/v1/chat/completions", json=body, timeout=30)  # without the key: not kept
        state = service.state / "qserve"
        store = RunStore.open(state)
        until(lambda: store.run().num_requests == 4, START_LIMIT_S, lambda: str(store.run()))
        until(lambda: "latency" in chat_report(client), START_LIMIT_S, lambda: str(chat_report(client)))
        latency = chat_report(client)["latency"]
        shown = client.get(f"/v1/qserve/runs/{told['run']}").json()
        assert client.get("/v1/qserve/runs").json()["data"][0]["id"] == told["run"]
        assert client.get("/v1/qserve/runs/nothing").json()["error"]["code"] == "run_not_found"
    assert httpx.get(f"{service.url}/v1/qserve/runs", timeout=30).status_code == 401
    assert shown["state"] == "running"
    assert latency["num_requests"] == 1, "the one that was streamed"
    assert 0 <= latency["others_share"] <= 1
    for name in ("ttft_ms", "tpot_ms"):
        one = latency[name]
        assert 0 < one["low"] < one["planned_mean"] < one["high"]
        assert one["measured_mean"] > 0
        assert abs(one["measured_mean"] / one["planned_mean"] - 1 - one["difference"]) < 0.01
    assert shown["requests"]["workers"], "percentiles of what was answered"

    family = psutil.Process(service.process.pid).children(recursive=True)
    assert family
    service.process.kill()
    assert service.ended(family) == -signal.SIGKILL, "and none of its processes is left"
    run = store.run()
    assert (run.id, run.state, run.num_requests, run.num_errors) == (told["run"], "died", 4, 1)
    assert "secret-of-this-test" not in json.dumps(run.to_json(), default=str)
    requests = store.requests(run)
    assert [one.status for one in requests] == [404, 200, 200, 200]
    assert [one.ttft_ms is not None for one in requests] == [False, False, False, True], "only the stream has a TTFT"
    assert [one.completion_tokens for one in requests[1:3]] == answered[::-1], "as the worker's usage told"
    (worker,) = run.workers
    assert worker.models == ("demo",)
    assert "loading weights" in worker.start_phases_s
    ready = store.memory(run)[0]
    assert ready.moment == "ready"
    (checked,) = (event.details for event in store.events(run) if event.event == "sanity")
    assert not checked["is_noise"] and checked["losses"]["numbers"] < 0.7 * checked["noise_loss"]
    assert "self-test passed" in service.output
    assert ready.terms["kv_cache_tokens"] == worker.plan["kv_cache_tokens"]

    command = [str(QSERVE), "plan", "--model", "demo", "--engine", "transformers", "--engine-version"]
    command += [worker.plan["engine_version"], "--gpu", "none", "--state-dir", str(service.state), "--json"]
    environment = {name: value for name, value in os.environ.items() if name != "QSERVE_NO_LEARN"}
    plan = json.loads(subprocess.run(command, env=environment, capture_output=True, check=True, text=True).stdout)
    corrected = {one["term"]: one["measured"] for one in plan["corrections"]}
    assert corrected["weights"] == ready.terms["weights_bytes"]
    assert corrected["runtime"] == ready.terms["runtime_bytes"]
    assert plan["devices"][0]["runtime_bytes"] == ready.terms["runtime_bytes"]
    assert abs(plan["kv_cache_tokens"] / ready.terms["kv_cache_tokens"] - 1) < 0.01
