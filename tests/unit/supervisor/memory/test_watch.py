"""The watch over real child processes, on a machine whose /proc and cgroup are files that the test writes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from qserve.detect.free_memory import read_free_memory
from qserve.errors import WorkerFailed
from qserve.planner import Plan
from qserve.supervisor.memory.watch import MemoryBounds, MemoryWatch, watch_of
from qserve.supervisor.record import RunRecord
from qserve.supervisor.worker import SupervisedWorker
from qserve.units import GIB, MIB
from qserve.worker.base import WorkerState
from tests.unit.supervisor.test_worker import LIVES, Script, plan, until, worker

__all__ = ["plan"]  # the fixture

LIMIT = 50 * GIB  # 1 GiB free refuses, 0.83 drains, 0.67 ends, 1.2 recovers
HOLDS = "held = bytearray(200 << 20); " + LIVES
SLOW = "import time; time.sleep(600)"


class Machine:
    """A machine of 64 GiB with a cgroup of `LIMIT`, as the kernel lays it out."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._write("proc/meminfo", f"MemTotal: {64 * GIB >> 10} kB\nMemAvailable: {60 * GIB >> 10} kB\n")
        self._write("proc/self/cgroup", "0::/job\n")
        self._write("sys/fs/cgroup/job/memory.max", f"{LIMIT}\n")
        self.has_free(20 * GIB)
        self.stalls(0)

    def has_free(self, num_bytes: int) -> None:
        self._write("sys/fs/cgroup/job/memory.current", f"{LIMIT - num_bytes}\n")

    def stalls(self, percent: float) -> None:
        self._write("sys/fs/cgroup/job/memory.pressure", f"full avg10={percent:.2f} avg60=0.00 avg300=0.00 total=0\n")

    def _write(self, name: str, text: str) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f"{path.name}.part")
        part.write_text(text)
        part.replace(path)  # it is read meanwhile


@asynccontextmanager
async def watched(folder: Path, *workers: SupervisedWorker) -> AsyncIterator[tuple[Machine, MemoryWatch]]:
    """The watch over `workers`, which are started and supervised."""
    machine = Machine(folder / "machine")
    record = RunRecord(folder / "state" / "runs" / "one")
    watch = MemoryWatch(workers, MemoryBounds(), record, partial(read_free_memory, machine.root))
    for one in workers:
        await one.start()
    supervising = [asyncio.create_task(one.watch()) for one in workers]
    watch.begin()
    try:
        yield machine, watch
    finally:
        await watch.stop()
        for task in supervising:
            task.cancel()
        await asyncio.gather(*supervising, return_exceptions=True)
        for one in workers:
            await one.stop()


async def test_requests_are_refused_while_memory_is_low(plan: Plan, tmp_path: Path) -> None:
    one, _ = worker(Script(plan, LIVES), tmp_path)
    async with watched(tmp_path, one) as (machine, watch):
        await until(lambda: watch.shown.total_bytes == LIMIT)
        assert one.status.refusal == ""
        machine.has_free(900 * MIB)
        await until(lambda: bool(one.status.refusal))
        assert one.status.refusal == (
            "the cgroup job has 900 MiB of 50.00 GiB free; new requests are refused until 1.20 GiB are free"
        )
        assert (watch.shown.level, watch.shown.available_bytes, watch.shown.refuse_bytes) == (1, 900 * MIB, GIB)
        machine.has_free(20 * GIB)
        await until(lambda: not one.status.refusal)
        assert (one.status.state, one.status.num_restarts) == (WorkerState.READY, 0)


async def test_who_holds_most_is_ended_and_comes_back_once_there_is_memory(plan: Plan, tmp_path: Path) -> None:
    small, _ = worker(Script(plan, LIVES), tmp_path)
    large, heard = worker(Script(plan, HOLDS), tmp_path)
    large.status.facts = replace(large.status.facts, name="large")
    async with watched(tmp_path, small, large) as (machine, watch):
        before = large.pid
        machine.has_free(300 * MIB)
        await until(lambda: large.status.state is WorkerState.RESTARTING)
        await until(lambda: "started again when there is memory" in large.status.detail)
        machine.has_free(20 * GIB)
        await until(lambda: large.status.state is WorkerState.READY)
        assert large.pid != before
        assert (small.status.num_restarts, large.status.num_restarts, watch.shown.num_ended) == (0, 1, 1)
        (restart,) = heard.of("restart")
        assert "the cgroup job has 300 MiB of 50.00 GiB free; large holds " in restart["reason"]
        assert "(planned " in restart["reason"] and restart["reason"].endswith("it was ended to free memory")


async def test_who_takes_its_time_to_end_is_not_ended_twice(
    plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("qserve.supervisor.memory.watch.END_AGAIN_S", 0.1)

    class Guarded(Script):
        """What computes is not the process that was started, which ignores the first signal."""

        def computing(self, pid: int) -> list[int]:
            return []

    ignores = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
    one, _ = worker(Guarded(plan, ignores + LIVES), tmp_path)
    async with watched(tmp_path, one) as (machine, watch):
        machine.has_free(0)
        await until(lambda: one.status.state is WorkerState.RESTARTING)
        await asyncio.sleep(1)
        assert one.running_pid is not None, "it is still there"
        assert watch.shown.num_ended == 1


async def test_who_outgrew_its_plan_is_restarted_once_its_requests_are_over(plan: Plan, tmp_path: Path) -> None:
    tiny = replace(plan, devices=tuple(replace(one, runtime_bytes=0, activations_bytes=0) for one in plan.devices))
    one, heard = worker(Script(tiny, HOLDS), tmp_path)
    as_planned, _ = worker(Script(plan, LIVES), tmp_path)
    async with watched(tmp_path, one, as_planned) as (machine, _):
        one.status.load.num_requests = 1
        machine.has_free(800 * MIB)
        await until(lambda: one.status.state is WorkerState.DRAINING)
        await asyncio.sleep(0.3)
        assert one.status.state is WorkerState.DRAINING, "its request still runs"
        one.status.load.num_requests = 0
        await until(lambda: one.status.state is WorkerState.READY and one.status.num_restarts == 1)
        assert heard.of("restart")[0]["reason"] == "a restart was requested"
        assert as_planned.status.num_restarts == 0


async def test_a_start_that_takes_the_memory_fails_with_the_figures(plan: Plan, tmp_path: Path) -> None:
    machine = Machine(tmp_path / "machine")
    one, _ = worker(Script(plan, SLOW), tmp_path)
    record = RunRecord(tmp_path / "state" / "runs" / "one")
    watch = MemoryWatch([one], MemoryBounds(), record, partial(read_free_memory, machine.root))
    starting = asyncio.create_task(one.start())
    watch.begin()
    await until(lambda: one.running_pid is not None)
    machine.has_free(0)
    with pytest.raises(WorkerFailed, match=r"0 B of 50.00 GiB free; chat holds .* ended to free memory"):
        await starting
    await watch.stop()
    assert one.running_pid is None


async def test_processes_that_wait_for_memory_are_enough_to_refuse(plan: Plan, tmp_path: Path) -> None:
    one, _ = worker(Script(plan, LIVES), tmp_path)
    async with watched(tmp_path, one) as (machine, watch):
        machine.stalls(40)
        await until(lambda: "40% of the time" in one.status.refusal)
        assert watch.shown.stalled_share == pytest.approx(0.4)


async def test_a_watch_that_fails_holds_nothing_back(
    plan: Plan, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    one, _ = worker(Script(plan, LIVES), tmp_path)
    async with watched(tmp_path, one) as (machine, _):
        machine.has_free(0)
        await until(lambda: not one.may_restart.is_set())
        (machine.root / "sys/fs/cgroup/job/memory.stat").write_text("active_file many\n")
        await until(lambda: one.may_restart.is_set())
        assert one.status.refusal == ""
        assert "is no longer watched" in caplog.text


def test_what_is_watched(plan: Plan, tmp_path: Path) -> None:
    record = RunRecord(tmp_path / "state" / "runs" / "one")
    on_cpu, _ = worker(Script(plan, LIVES), tmp_path)
    on_card, _ = worker(Script(replace(plan, on_cpu=False), LIVES), tmp_path)
    assert watch_of([on_cpu], MemoryBounds(), record) is not None
    assert watch_of([on_card], MemoryBounds(), record) is None
    assert watch_of([on_card], MemoryBounds(shares_gpu=True), record) is not None
    assert watch_of([on_cpu], MemoryBounds(min_free_bytes=0), record) is None
