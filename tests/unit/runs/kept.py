"""A store with a run in it, for the tests beside."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from qserve.runs import RunStore
from qserve.runs.retention import Retention
from qserve.runs.writer import NewRun, RequestLabel, RequestRow, RunWriter

GOOD = RequestLabel("POST", "/v1/chat/completions", "demo", "chat", 200, "", False, False)
DIED = GOOD._replace(status=502, error_code="worker_died")
PLAN = {
    "engine": "vllm",
    "engine_version": "0.32.0",
    "quant": {"scheme": "bf16"},
    "kv_cache_tokens": 1024,
    "workload": {"max_model_len": 512, "max_num_seqs": 4},
    "devices": [
        {
            "weights_bytes": 100,
            "kv_cache_bytes": 50,
            "activations_bytes": 10,
            "cuda_graphs_bytes": 0,
            "runtime_bytes": 5,
        }
    ],
}


def new_run(folder: Path, name: str = "20261121-120000-1", started_by: str = "") -> NewRun:
    logs = folder / "runs" / name
    logs.mkdir(parents=True, exist_ok=True)
    (logs / "chat.log").write_text("ready\n")
    return NewRun(name, ("qserve", "up", "--model", "demo"), {"qserve": "0.1.0"}, {"cpu_cores": 2}, logs, started_by)


def writer(folder: Path, name: str = "20261121-120000-1", retention: Retention | None = None) -> RunWriter:
    return RunWriter(folder, new_run(folder, name), retention or Retention())


def request(number: int, label: RequestLabel = GOOD, began_unix_ms: int | None = None) -> RequestRow:
    """E2E 1, 2, 3, … ms; TTFT half of it; 11 tokens."""
    began = int(time.time() * 1000) if began_unix_ms is None else began_unix_ms
    return RequestRow(label, began, 1000 * (number + 1), 100, 500 * (number + 1), 7, 11, 12, f"req-{number}")


def stored(folder: Path, count: int = 100, name: str = "20261121-120000-1") -> RunStore:
    """One run of `count` good requests and one that failed, ended well."""
    run = writer(folder, name)
    run.plan("chat", ("demo",), PLAN)
    run.event("chat", "ready", {"phases_s": {"loading weights": 1.5}})
    run.memory("chat", "ready", {"weights_bytes": 99, "kv_cache_tokens": 1000, "sources": {"weights_bytes": "counted"}})
    run.event("chat", "restart", {"reason": "killed by SIGKILL"})
    run.listens_at("http://127.0.0.1:8000")
    for number in range(count):
        run.request(request(number))
    run.request(request(count, DIED))
    run.close(0)
    return RunStore.open(folder)


def until(condition: Callable[[], bool], limit_s: float = 60.0) -> None:
    """Waits for what another thread or process brings about."""
    end = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.02)
