"""What the supervisor does with a worker, whatever engine it is: real child processes, no engine."""

from __future__ import annotations

import asyncio
import io
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from rich.console import Console

import qserve.supervisor.child
from qserve.core.hardware import parse_gpu
from qserve.errors import DoesNotFit, QserveError, UsageError, WorkerFailed
from qserve.hub import resolve
from qserve.planner import Plan, PlanRequest, make_plan
from qserve.runs import RunStore
from qserve.runs.writer import NewRun
from qserve.service.machine import hardware_of
from qserve.supervisor.liveness.outside_kill import MemoryKills
from qserve.supervisor.liveness.start_watch import StartStuck
from qserve.supervisor.measure import reported_memory
from qserve.supervisor.record import Recording, RunRecord
from qserve.supervisor.screen import Screen
from qserve.supervisor.this_machine import _visible_devices, event_recorder
from qserve.supervisor.worker import SupervisedWorker
from qserve.worker.base import UnixAddress, WorkerFacts, WorkerState, WorkerStatus
from qserve.worker.heartbeat import Progress
from qserve.worker.launch import Retry, SendRequest
from tests.processes import is_running

LIVES = "print('up', flush=True); import time; time.sleep(600)"
REFUSES = "print('too big', flush=True); raise SystemExit(3)"


@pytest.fixture(scope="module")
def plan() -> Plan:
    return make_plan(resolve("demo"), hardware_of("none"), PlanRequest())


class Script:
    """A launch of `python -c CODE`, ready once it has printed `up`."""

    measures_free_memory = False

    def __init__(self, plan: Plan, code: str, again: Callable[[], Retry | None] = lambda: None) -> None:
        self.plan = plan
        self.command: tuple[str, ...] = (sys.executable, "-c", code)
        self.environment = {"PATH": ""}
        self.notes: list[str] = []
        self.introduced = 0
        self.is_sick = False
        self._again = again
        self._lines: list[str] = []

    def begin(self) -> None:
        self._lines.clear()

    def hear(self, line: str) -> str | None:
        self._lines.append(line)
        return line

    async def is_ready(self, send: SendRequest) -> bool:
        return "up" in self._lines

    async def is_well(self, send: SendRequest) -> bool | None:
        return not self.is_sick

    async def introduce(self, send: SendRequest, facts: WorkerFacts) -> WorkerFacts:
        self.introduced += 1
        return facts

    def failure(self, returncode: int, *, is_outside: bool = False) -> QserveError:
        return DoesNotFit(f"{self._lines} {returncode}{' from outside' if is_outside else ''}")

    def retry(self) -> Retry | None:
        return self._again()

    async def progress(self, send: SendRequest) -> Progress | None:
        return None

    def computing(self, pid: int) -> list[int]:
        return [pid]

    def retry_stuck(self) -> Retry | None:
        return self._again()

    async def memory(self, send: SendRequest, pid: int) -> dict[str, Any]:
        return {"pid": pid}


class Heard(list[tuple[str, dict[str, Any]]]):
    """Events of the worker."""

    def __call__(self, worker: str, event: str, details: dict[str, Any]) -> None:
        self.append((event, details))

    def of(self, event: str) -> list[dict[str, Any]]:
        return [details for name, details in self if name == event]


def worker(launch: Script, folder: Path) -> tuple[SupervisedWorker, Heard]:
    limits, heard = launch.plan.workload, Heard()
    status = WorkerStatus(
        WorkerFacts("chat", ("demo",), UnixAddress(folder / "s"), "k", limits.max_num_seqs, limits.max_model_len)
    )
    return SupervisedWorker(status, launch, folder / "chat.log", heard), heard


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not holds():
            await asyncio.sleep(0.01)


async def test_a_refused_plan_is_tried_once_more_with_the_engines_numbers(plan: Plan, tmp_path: Path) -> None:
    smaller = replace(plan, workload=replace(plan.workload, max_model_len=512, max_num_seqs=3))
    second = Script(smaller, LIVES)
    one, heard = worker(Script(plan, REFUSES, lambda: Retry(second, "--max-model-len 512")), tmp_path)
    await one.start()
    assert one.status.state is WorkerState.READY
    assert (one.status.facts.max_model_len, one.status.facts.max_num_seqs) == (512, 3)
    assert one.launch is second
    (told,) = heard.of("retry")
    assert told["reason"] == "--max-model-len 512"
    assert "too big" in told["refused"]
    await one.stop()


async def test_a_machine_that_has_no_process_for_it_now_is_asked_again(
    plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No memory, no descriptor: what passes by itself must not end the service, which others are served by."""
    one, heard = worker(Script(plan, LIVES), tmp_path)
    await one.start()
    started, tried = asyncio.create_subprocess_exec, []

    async def refuse_once(*command: Any, **options: Any) -> asyncio.subprocess.Process:
        tried.append(command)
        if len(tried) == 1:
            raise BlockingIOError(11, "Resource temporarily unavailable")
        return await started(*command, **options)

    monkeypatch.setattr(asyncio, "create_subprocess_exec", refuse_once)
    watching = asyncio.create_task(one.watch())
    os.kill(one.pid or 0, signal.SIGKILL)
    await until(lambda: len(tried) == 2 and one.status.state is WorkerState.READY)
    watching.cancel()
    await one.stop()
    assert "can't be started: Resource temporarily unavailable" in heard.of("restart")[1]["reason"]


async def test_the_second_refusal_is_the_last(plan: Plan, tmp_path: Path) -> None:
    def again() -> Retry:
        return Retry(Script(plan, REFUSES, again), "less")

    one, heard = worker(Script(plan, REFUSES, again), tmp_path)
    with pytest.raises(DoesNotFit, match="too big"):
        await one.start()
    assert len(heard.of("retry")) == 1


async def test_without_numbers_the_first_refusal_is_the_last(plan: Plan, tmp_path: Path) -> None:
    one, heard = worker(Script(plan, REFUSES), tmp_path)
    with pytest.raises(DoesNotFit, match="3"):
        await one.start()
    assert not heard.of("retry")
    assert (tmp_path / "chat.log").read_text() == "too big\n"


async def test_a_worker_that_says_it_is_not_well_is_ended_and_started_anew(plan: Plan, tmp_path: Path) -> None:
    launch = Script(plan, LIVES)
    one, heard = worker(launch, tmp_path)
    await one.start()
    first = one.pid
    assert first is not None
    watching = asyncio.create_task(one.watch())
    launch.is_sick = True
    await until(lambda: one.status.state is WorkerState.RESTARTING)
    launch.is_sick = False
    await until(lambda: one.status.state is WorkerState.READY)
    assert one.pid != first
    assert not psutil.pid_exists(first)
    assert launch.introduced == 2
    assert "unhealthy" in heard.of("restart")[0]["reason"]
    watching.cancel()
    await one.stop()


async def test_one_that_does_not_heed_sigterm_may_end_its_family_before_it_is_killed(
    plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So does the guard of vLLM (worker/guard.py)."""
    monkeypatch.setattr(qserve.supervisor.child, "_TERM_GRACE_S", 0.1)
    tidied = tmp_path / "tidied"
    code = (
        "import os, pathlib, signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
        f"signal.signal(signal.SIGUSR1, lambda *_: (pathlib.Path({str(tidied)!r}).touch(), os._exit(0))); "
        "print('up', flush=True); time.sleep(600)"
    )
    one, _ = worker(Script(plan, code), tmp_path)
    await one.start()
    await one.stop()
    assert tidied.exists()


async def test_what_a_worker_started_does_not_outlive_it(plan: Plan, tmp_path: Path) -> None:
    code = (
        "import subprocess, sys, time; p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)']); "
        "print(p.pid, flush=True); print('up', flush=True); time.sleep(600)"
    )
    one, heard = worker(Script(plan, code), tmp_path)
    await one.start()
    child = int(heard.of("phase")[0]["name"])
    assert psutil.pid_exists(child)
    await one.stop()
    await until(lambda: not is_running(child))


async def test_an_introduction_that_fails_leaves_no_process(plan: Plan, tmp_path: Path) -> None:
    launch = Script(plan, LIVES)

    async def fails(send: SendRequest, facts: WorkerFacts) -> WorkerFacts:
        raise WorkerFailed("it does not say what it takes")

    launch.introduce = fails  # type: ignore[method-assign]
    one, _ = worker(launch, tmp_path)
    with pytest.raises(WorkerFailed, match="does not say"):
        await one.start()
    assert one.pid is not None
    assert not psutil.pid_exists(one.pid)


async def test_a_second_try_shows_and_records_its_own_plan(plan: Plan, tmp_path: Path) -> None:
    smaller = replace(plan, workload=replace(plan.workload, max_model_len=512))
    one, _ = worker(Script(plan, REFUSES, lambda: Retry(Script(smaller, LIVES), "shorter")), tmp_path)
    folder = tmp_path / "runs" / "one"
    record = RunRecord(folder, Recording(tmp_path, NewRun("one", ("qserve", "up"), {}, {}, folder)))
    record.plan("chat", plan, ("m",))
    one._restarts._report = event_recorder(record, Screen(Console(file=io.StringIO())))
    await one.start()
    assert one.status.facts.plan == smaller.to_json()
    await one.stop()
    record.end(0)
    store = RunStore.open(tmp_path)
    (kept,) = store.run("one").workers
    assert kept.models == ("m",)
    assert [Plan.from_json(dict(each)) for each in kept.plans] == [plan, smaller]
    (retry,) = [event for event in store.events(store.run()) if event.event == "retry"]
    assert retry.details["reason"] == "shorter"
    assert "plan" not in retry.details


async def test_a_worker_that_never_will_be_ready_is_ended(plan: Plan, tmp_path: Path) -> None:
    launch = Script(plan, LIVES)

    async def refuses(send: SendRequest) -> bool:
        raise UsageError("one token is too many")

    launch.is_ready = refuses  # type: ignore[method-assign]
    one, _ = worker(launch, tmp_path)
    with pytest.raises(UsageError, match="too many"):
        await one.start()
    assert one.pid is not None
    assert not psutil.pid_exists(one.pid)


async def test_what_left_the_process_group_and_holds_the_pipe_does_not_stop_a_restart(
    plan: Plan, tmp_path: Path
) -> None:
    code = (
        "import subprocess, sys, time; p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], "
        "start_new_session=True); print(p.pid, flush=True); print('up', flush=True); time.sleep(600)"
    )
    one, heard = worker(Script(plan, code), tmp_path)
    await one.start()
    first = one.pid
    assert first is not None
    watching = asyncio.create_task(one.watch())
    os.kill(first, signal.SIGKILL)
    await until(lambda: one.status.state is WorkerState.READY and one.pid != first)
    watching.cancel()
    for phase in heard.of("phase"):
        if phase["name"].isdigit():
            os.killpg(int(phase["name"]), signal.SIGKILL)
    await one.stop()


@pytest.mark.parametrize("is_outside", [True, False])
async def test_a_start_that_was_killed_says_by_what(
    is_outside: bool, plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether the kernel ran out of memory meanwhile is the machine's to say."""
    monkeypatch.setattr(MemoryKills, "rule_out", lambda kills, returncode: is_outside and returncode == -9)
    one, _ = worker(Script(plan, "import os; os.kill(os.getpid(), 9)"), tmp_path)
    with pytest.raises(DoesNotFit) as told:
        await one.start()
    assert str(told.value).endswith("-9 from outside" if is_outside else "-9")
    await one.stop()


async def test_no_line_is_too_long_and_no_disk_too_full_to_hear_the_worker(plan: Plan, tmp_path: Path) -> None:
    (tmp_path / "chat.log").mkdir()  # can't be opened
    one, _ = worker(Script(plan, "print('x' * 3_000_000); " + LIVES), tmp_path)
    async with asyncio.timeout(60):
        await one.start()
    await one.stop()


@pytest.mark.parametrize("error", [UsageError("gone"), OSError("gone"), ValueError("half a document")])
async def test_a_worker_that_dies_as_it_is_asked_what_it_holds_ends_nothing(
    plan: Plan, tmp_path: Path, error: Exception
) -> None:
    one, _ = worker(Script(plan, LIVES), tmp_path)

    async def fails(send: SendRequest, pid: int) -> dict[str, Any]:
        raise error

    one.launch.memory = fails  # type: ignore[method-assign]
    await one.start()
    assert await reported_memory(one) == {}
    await one.stop()


def test_cards_are_numbered_as_the_plan_numbered_them() -> None:
    card = parse_gpu("rtx-4090")[0]
    assert _visible_devices(None, on_cpu=False) == {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    two = _visible_devices((replace(card, uuid="GPU-b"), replace(card, uuid="GPU-a")), on_cpu=False)
    assert two["CUDA_VISIBLE_DEVICES"] == "GPU-b,GPU-a"


def test_a_worker_on_the_cpu_sees_no_card() -> None:
    """transformers would pin memory on the first one, which takes half a gigabyte there, or fails where it is full."""
    assert _visible_devices(None, on_cpu=True)["CUDA_VISIBLE_DEVICES"] == ""


SPINS = "print('up', flush=True)\nwhile True: pass"


@pytest.fixture
def fast_watch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qserve.supervisor.liveness.stall.INTERVAL_S", 0.1)


@pytest.mark.usefixtures("fast_watch")
async def test_a_stopped_worker_with_requests_in_flight_is_ended_and_started_anew(plan: Plan, tmp_path: Path) -> None:
    one, heard = worker(Script(plan, LIVES), tmp_path)
    await one.start()
    watching = asyncio.create_task(one.watch())
    one.status.load.num_awaited = 1
    stopped = one.pid
    assert stopped is not None
    os.kill(stopped, signal.SIGSTOP)
    await until(lambda: bool(heard.of("restart")))
    one.status.load.num_awaited = 0
    await until(lambda: one.pid != stopped and one.status.state is WorkerState.READY)
    (told,) = heard.of("restart")
    assert "hung" in told["reason"] and "did nothing" in told["reason"]
    assert any("stopped" in line for line in heard.of("stuck")[0]["processes"])
    assert "most recent call first" in (tmp_path / "chat.log").read_text()  # faulthandler's words
    watching.cancel()
    await one.stop()


@pytest.mark.usefixtures("fast_watch")
@pytest.mark.parametrize(("code", "num_awaited"), [(SPINS, 1), (LIVES, 0)])
async def test_a_worker_that_computes_or_is_asked_nothing_is_left_alone(
    plan: Plan, tmp_path: Path, code: str, num_awaited: int
) -> None:
    one, heard = worker(Script(plan, code), tmp_path)
    await one.start()
    watching = asyncio.create_task(one.watch())
    one.status.load.num_awaited = num_awaited
    await asyncio.sleep(2)
    assert not heard.of("restart") and one.status.state is WorkerState.READY
    watching.cancel()
    await one.stop()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qserve.supervisor.liveness.start_watch.limit_of", lambda phase: 0.5)
    monkeypatch.setattr("qserve.supervisor.liveness.start_watch._CHECK_INTERVAL_S", 0.1)


@pytest.mark.usefixtures("impatient")
async def test_a_start_that_says_nothing_fails_with_its_stacks(plan: Plan, tmp_path: Path) -> None:
    code = "import time\ndef waits_for_nccl(): print('init', flush=True); time.sleep(600)\nwaits_for_nccl()"
    one, _ = worker(Script(plan, code, lambda: None), tmp_path)
    with pytest.raises(StartStuck, match="NCCL") as raised:
        await one.start()
    assert "IOMMU" in str(raised.value) and "shared memory" in str(raised.value) and str(tmp_path) in str(raised.value)
    assert "waits_for_nccl" in (tmp_path / "chat.log").read_text()


@pytest.mark.usefixtures("impatient")
async def test_a_stuck_start_is_tried_once_more_without_what_hangs(plan: Plan, tmp_path: Path) -> None:
    second = Script(plan, LIVES)
    first = Script(plan, "import time; time.sleep(600)", lambda: Retry(second, "NCCL_P2P_DISABLE=1"))
    one, heard = worker(first, tmp_path)
    await one.start()
    assert one.launch is second and one.status.state is WorkerState.READY
    assert heard.of("retry")[0]["reason"] == "NCCL_P2P_DISABLE=1"
    await one.stop()


async def test_a_worker_never_learns_the_services_keys(plan: Plan, tmp_path: Path) -> None:
    script = Script(plan, f"import os; print('key', os.environ.get('QSERVE_API_KEY'), flush=True); {LIVES}")
    script.environment = {**script.environment, "QSERVE_API_KEY": "sk-service"}
    one, _ = worker(script, tmp_path)
    await one.start()
    assert "key None" in (tmp_path / "chat.log").read_text()
    assert (tmp_path / "chat.log").stat().st_mode & 0o777 == 0o600
    await one.stop()
