"""`qserve up` as a user starts it, and `qserve bench` against it: planned beside measured, on whichever engine.

Nothing here touches the card: the workers of the service have it to themselves.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from bench.gpu_steps.planned import PlannedSpeed, planned_terms
from qserve.core.dimensions import tensors_of
from qserve.core.model_spec import ModelSpec
from qserve.detect import detect
from qserve.planner import Plan
from qserve.worker.process import end_with_parent

__all__ = ["Service"]

ROOT = Path(__file__).resolve().parents[2]
_QSERVE = (sys.executable, "-m", "qserve")
# vLLM sizes its cache itself, as a plan says that it would, and tells the peak of its activations.
_ENVIRONMENT = {"QSERVE_VLLM_PROFILES_MEMORY": "1", "HF_HUB_OFFLINE": "1"}
_END_S = 40
_LOG_BYTES = 3000
_TERMS = (
    "weights_bytes",
    "kv_cache_bytes",
    "activations_bytes",
    "cuda_graphs_bytes",
    "runtime_bytes",
    "kv_cache_tokens",
    "device_bytes",
)


class Service:
    """One `qserve up`, from its start to its end. Its output is appended to `log`."""

    def __init__(self, flags: list[str], configs: Mapping[str, Mapping[str, Any]], log: Path | None) -> None:
        """`flags` of `qserve up`; `configs`: config.json by role ("chat", "reward"). Nothing runs yet."""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.url = f"http://127.0.0.1:{free.getsockname()[1]}"
        self._state = tempfile.TemporaryDirectory(prefix="qserve-gpu-state-")
        self._configs = configs
        self._log_path = log or Path(self._state.name) / "up.log"
        port = self.url.rsplit(":", 1)[1]
        self._command = [
            *_QSERVE,
            "up",
            *flags,
            "--port",
            port,
            "--no-ui",
            "--no-learn",
            "--state-dir",
            self._state.name,
        ]
        self._process: subprocess.Popen[bytes] | None = None
        self._plans: dict[str, Plan] = {}
        self._log_from = 0

    def start(self, limit_s: float) -> dict[str, Any]:
        """Until it is ready: memory by term, planned and measured, of each worker, and the phases of the start."""
        self._log_from = self._log_path.stat().st_size if self._log_path.exists() else 0
        begun = time.monotonic()
        with self._log_path.open("ab") as log:
            log.write(f"\n$ {' '.join(self._command[1:])}\n".encode())
            log.flush()
            self._process = subprocess.Popen(
                self._command,
                cwd=ROOT,
                env={**os.environ, **_ENVIRONMENT},
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=partial(end_with_parent, signal.SIGTERM, os.getpid()),
            )
        while not self._answers("/ready"):
            if self._process.poll() is not None:
                raise RuntimeError(f"qserve up ended with status {self._process.returncode}: {self._last_line()}")
            if time.monotonic() - begun > limit_s:
                raise TimeoutError(f"not ready within {limit_s:.0f} s: {self._last_line()}")
            time.sleep(0.3)
        ready_s = time.monotonic() - begun
        workers = self._get("/v1/qserve/report")["data"]
        return {"ready_s": ready_s, "workers": {one["role"]: self._worker(one) for one in workers}}

    def bench(self, role: str, concurrency: int, num_prompts: int, lengths: tuple[int, int]) -> dict[str, Any]:
        """A closed loop of `qserve bench`, beside what the plan says of the same loop."""
        endpoint = "reward" if role == "reward" else "completions"
        done = subprocess.run(
            [
                *_QSERVE,
                "bench",
                "--url",
                self.url,
                "--endpoint",
                endpoint,
                "--concurrency",
                str(concurrency),
                "--num-prompts",
                str(num_prompts),
                "--input-len",
                str(lengths[0]),
                "--output-len",
                str(lengths[1]),
                "--json",
                "--state-dir",
                self._state.name,
            ],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"qserve bench ended with {done.returncode}: {done.stderr.strip()[-400:]}")
        found = json.loads(done.stdout)
        stage = found["stages"][0]
        if stage["failed"] or stage["completed"] < num_prompts:
            raise RuntimeError(f"{stage['completed']} of {num_prompts} answers came: {stage['error_sentences']}")
        prompt_tokens = found["load"]["first_request_prompt_tokens"] or lengths[0]
        if role == "reward":
            return self._rewards(stage)
        measured = {
            "ttft_ms": stage["mean_ttft_ms"],
            "tpot_ms": stage["mean_tpot_ms"],
            "output_tokens_per_s": stage["output_throughput"],
            "p99_ttft_ms": stage["p99_ttft_ms"],
            "p99_tpot_ms": stage["p99_tpot_ms"],
        }
        plan = self._plans[role]
        spec = ModelSpec.from_config(self._configs[role], plan.model.id)
        speed = PlannedSpeed(plan, spec, detect())
        planned = speed.closed_loop(concurrency, int(prompt_tokens), lengths[1], num_prompts)
        return {"planned": planned, "measured": measured, "prompt_tokens": prompt_tokens}

    def _rewards(self, stage: dict[str, Any]) -> dict[str, Any]:
        """Two operations a weight of the layers and token: attention is left out, so that the share is too low."""
        spec = ModelSpec.from_config(self._configs["reward"], "reward")
        inside = sum(one.num_elements for one in tensors_of(spec) if one.role not in ("embedding", "head"))
        tokens_per_s = stage["total_input_tokens"] / stage["duration"]
        return {
            "measured": {
                "texts_per_s": stage["text_throughput"],
                "tokens_per_s": tokens_per_s,
                "mean_ms": stage["mean_e2el_ms"],
            },
            "flop_per_s": 2 * inside * tokens_per_s,
        }

    def is_as_planned(self, row: dict[str, Any]) -> bool:
        """Weights within 3 %, the tokens of vLLM's own cache within 5 %, and no kernel of ours refused."""
        for worker in row["workers"].values():
            planned, measured = worker["planned"], worker["measured"]
            for term, most in (("weights_bytes", 0.03), ("kv_cache_tokens", 0.05)):
                taken = measured.get(term)
                if taken and planned[term] and abs(planned[term] - taken) > most * taken:
                    return False
            if (worker["path"] or {}).get("refused"):
                return False
        return True

    def end(self) -> None:
        """Its processes are gone when this returns."""
        if self._process is not None:
            self._signal(signal.SIGTERM)
            try:
                self._process.wait(_END_S)
            except subprocess.TimeoutExpired:
                self._signal(signal.SIGKILL)
                self._process.wait()
            self._process = None
        self._state.cleanup()

    def _signal(self, number: signal.Signals) -> None:
        """To the service and all that it started; one that did not start is gone already."""
        assert self._process is not None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

    def _worker(self, one: dict[str, Any]) -> dict[str, Any]:
        plan = self._plans[one["role"]] = Plan.from_json(one["planned"])
        memory = one.get("memory") or {}
        return {
            "engine": f"{plan.engine} {plan.engine_version}",
            "planned": planned_terms(plan),
            "measured": {name: memory[name] for name in _TERMS if memory.get(name) is not None},
            "max_num_seqs": plan.workload.max_num_seqs,
            "path": memory.get("kernels"),
            "attention": memory.get("attention"),
            "notes": memory.get("notes") or [],
            "start_phases_s": one.get("start_phases_s"),
            "arguments": list(plan.engine_args),
        }

    def _answers(self, path: str) -> bool:
        try:
            with urllib.request.urlopen(self.url + path, timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def _get(self, path: str) -> Any:
        with urllib.request.urlopen(self.url + path, timeout=30) as answer:
            return json.load(answer)

    def _last_line(self) -> str:
        with self._log_path.open("rb") as log:
            log.seek(self._log_from)
            lines = [line for line in log.read()[-_LOG_BYTES:].decode(errors="replace").splitlines() if line.strip()]
        return lines[-1].strip() if lines else "it printed nothing"
