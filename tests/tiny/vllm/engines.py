"""Real vLLM servers, started by qserve's command line as child processes of a test."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from qserve.detect import detect
from qserve.engine.process import WorkerSpec
from qserve.engine.vllm.command import VllmCommand, command
from qserve.engine.vllm.parser import FlagParser
from qserve.hub import resolve
from qserve.planner import Plan, make_plan, plan_request

DEMO = Path(str(resolve("demo").folder))
KEY = "an-internal-key"
START_TIMEOUT_S = 400
LIMITS = {"max_model_len": 1024, "max_num_seqs": 8, "max_num_batched_tokens": 512, "kv_cache_memory_bytes": 70_000_000}


@dataclass(frozen=True)
class Engine:
    """A server that was started, ready or ended."""

    plan: Plan
    command: VllmCommand
    process: subprocess.Popen[bytes]
    log_file: Path
    socket: Path

    @property
    def log(self) -> list[str]:
        return self.log_file.read_text(errors="replace").splitlines()

    def ask(self, path: str, body: dict[str, Any] | None = None, key: str = KEY) -> tuple[int, bytes]:
        """Status and body of the answer. Raises OSError while nobody listens."""
        connection = http.client.HTTPConnection("worker", timeout=60)
        connection.sock = socket.socket(socket.AF_UNIX)
        connection.sock.settimeout(60)
        try:
            connection.sock.connect(str(self.socket))
            headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
            method = "GET" if body is None else "POST"
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def answers(self) -> bool:
        try:
            return self.ask("/health")[0] == 200
        except OSError:
            return False


def plan_of(**fixed: Any) -> Plan:
    return make_plan(
        resolve("demo"),
        replace(detect(), devices=()),
        plan_request(engine="vllm", enforce_eager=True, **{**LIMITS, **fixed}),
    )


@contextmanager
def engine(
    parser: FlagParser, plan: Plan, extra: str = "", folder: Path = DEMO, environ: dict[str, str] | None = None
) -> Iterator[Engine]:
    """A server that answers, or one that ended before it did. It and all below it are gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="qserve-test-") as private:
        spec = WorkerSpec(folder, ("demo", "another/name"), plan, Path(private) / "s", KEY)
        started = command(spec, parser, extra, {**os.environ, **(environ or {})})
        log_file = Path(private) / "log"
        with log_file.open("wb") as log:
            process = subprocess.Popen(
                started.argv, env=started.env, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        running = Engine(plan, started, process, log_file, spec.socket)
        try:
            deadline = time.monotonic() + START_TIMEOUT_S
            while process.poll() is None and not running.answers():
                assert time.monotonic() < deadline, "\n".join(running.log[-20:])
                time.sleep(0.25)
            yield running
        finally:
            _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    with suppress(subprocess.TimeoutExpired):
        process.wait(30)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
