"""An agent whose service is stopped (SIGSTOP, a virtual machine that is moved): its lease ends it, and all of its own.

Real processes, no Ray: the agent of a node, its worker, and a service that renews the lease over a pipe.
"""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from qserve.cluster.checkpoints import key_of
from qserve.cluster.messages import Assignment
from qserve.cluster.settings import PortRange
from qserve.core.hardware import Hardware
from qserve.hub import resolve
from qserve.planner import engine, make_plan
from qserve.planner.request import PlanRequest
from qserve.supervisor.deployment import ModelDeployment
from qserve.units import GIB

ECHO = Path(__file__).parents[2] / "echo_engine"
LIMIT_S = 120
LEASE_S = 4.0
SERVICE = ["sh", "-c", "while echo renew; do sleep 0.1; done"]
AGENT = """
import pickle, sys, threading
from pathlib import Path
from qserve.cluster.agent import Agent
from qserve.cluster.messages import GatewayStatus
from qserve.worker.base import WorkerLoad

agent = Agent(pickle.loads(Path(sys.argv[1]).read_bytes()))
threading.Thread(target=lambda: [agent.renew() for _ in sys.stdin], daemon=True).start()
while (seen := agent.exchange(GatewayStatus(WorkerLoad(), 0.5))).state != "ready":
    assert seen.failure is None, seen.failure
print("ready", flush=True)
threading.Event().wait()
"""


def assignment() -> Assignment:
    chat = resolve("demo")
    assert chat.folder is not None
    plan = make_plan(chat, Hardware((), 16 * GIB, 8 * GIB, 2), PlanRequest(engine="echo", max_model_len=512))
    deployment = ModelDeployment("chat", chat.folder, ("demo",), plan)
    return Assignment(deployment, "", key_of(chat.folder), "key", "127.0.0.1", PortRange(20000, 29999), None, LEASE_S)


@pytest.fixture
def echo(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Its engine is registered; this process may have looked for engines before, and forgets it afterwards."""
    with monkeypatch.context() as patched:
        patched.syspath_prepend(ECHO)
        _forget_engines()
        yield
    _forget_engines()


def _forget_engines() -> None:
    engine._registered.cache_clear()
    engine.engine_named.cache_clear()


@pytest.mark.usefixtures("echo")
@pytest.mark.timeout(LIMIT_S)
def test_a_service_that_is_stopped_loses_the_worker_and_nothing_stays(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("lease")
    (folder / "assignment").write_bytes(pickle.dumps(assignment()))
    environment = {**os.environ, "PYTHONPATH": str(ECHO), "TMPDIR": str(folder)}
    service = subprocess.Popen(SERVICE, stdout=subprocess.PIPE)
    agent = subprocess.Popen(
        [sys.executable, "-c", AGENT, str(folder / "assignment")],
        stdin=service.stdout,
        stdout=subprocess.PIPE,
        env=environment,
    )
    assert agent.stdout is not None and service.stdout is not None
    service.stdout.close()
    try:
        assert agent.stdout.readline() == b"ready\n"
        workers = psutil.Process(agent.pid).children(recursive=True)
        assert workers and list(folder.glob("qserve-*"))
        service.send_signal(signal.SIGSTOP)
        assert agent.wait(LIMIT_S) == 1
        _, alive = psutil.wait_procs(workers, timeout=LIMIT_S)
        assert not alive, "the worker would go on beside its replacement"
        assert not list(folder.glob("qserve-*")), "its key lies there"
    finally:
        for process in (service, agent):
            process.kill()
            process.wait(LIMIT_S)
        agent.stdout.close()
