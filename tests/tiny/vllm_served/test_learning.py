"""What real vLLM was measured to hold is in the run store, and the next plan on this machine starts from it."""

from __future__ import annotations

import json
import os
import subprocess

import httpx

from qserve.runs import RunStore
from qserve.units import MIB
from tests.tiny.serving.served import QSERVE, START_LIMIT_S, Service, until
from tests.tiny.vllm_served.conftest import MAX_MODEL_LEN, NUM_PLACES


def test_the_second_plan_has_the_tokens_that_vllm_made_of_the_first(service: Service, http: httpx.Client) -> None:
    (entry,) = http.get("/v1/qserve/memory").json()["data"]
    store = RunStore.open(service.state / "qserve")
    until(lambda: store.residuals() != (), START_LIMIT_S, lambda: str(store.runs()))
    terms = {one.term for one in store.residuals()}
    assert "kv_cache_tokens" in terms
    assert "activations" not in terms, "nobody profiled a step beside --kv-cache-memory-bytes"
    command = [
        str(QSERVE),
        "plan",
        "--model",
        "demo",
        "--gpu",
        "none",
        "--engine",
        "vllm",
        "--dtype",
        "float32",
        "--engine-version",
        store.run().workers[0].plan["engine_version"],
        "--enforce-eager",
        "--max-model-len",
        str(MAX_MODEL_LEN),
        "--max-num-seqs",
        str(NUM_PLACES),
        "--kv-cache-memory-bytes",
        "64MiB",
        "--state-dir",
        str(service.state),
        "--json",
    ]
    environment = {name: value for name, value in os.environ.items() if name != "QSERVE_NO_LEARN"}
    plan = json.loads(subprocess.run(command, env=environment, capture_output=True, check=True, text=True).stdout)
    assert "kv_cache_tokens" in {one["term"] for one in plan["corrections"]}
    assert abs(plan["kv_cache_tokens"] / entry["memory"]["kv_cache_tokens"] - 1) < 0.01
    assert plan["placement"]["kv_cache_memory_bytes"] == 64 * MIB, "what the user fixed stays"
