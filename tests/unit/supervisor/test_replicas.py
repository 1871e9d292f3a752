"""Several workers: who starts when, what one's end means for the others, and a restart of one after the other."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from qserve.errors import DoesNotFit, WorkerFailed
from qserve.planner import Plan
from qserve.supervisor.liveness import restarts
from qserve.supervisor.replicas import RollingRestart, _sharing, start_all, watch_all
from qserve.supervisor.worker import ANY, CPU, SupervisedWorker
from qserve.worker.base import UnixAddress, WorkerFacts, WorkerState, WorkerStatus
from tests.unit.supervisor.test_worker import LIVES, Script, plan, until, worker

__all__ = ["plan"]


def replicas(of: Plan, folder: Path, *devices: str, code: str = LIVES) -> list[SupervisedWorker]:
    made = []
    for index, on in enumerate(devices):
        one, _ = worker(Script(of, code), folder)
        one.status.facts = replace(one.status.facts, name=f"chat-{index}")
        one.devices = frozenset(on.split())
        made.append(one)
    return made


@pytest.mark.parametrize(
    ("devices", "groups"),
    [
        (("a", "b", "a"), [["chat-1"], ["chat-0", "chat-2"]]),
        (("a b", "c", "b c"), [["chat-0", "chat-1", "chat-2"]]),
        ((CPU, CPU, "a"), [["chat-0", "chat-1"], ["chat-2"]]),
        ((ANY, "a", CPU), [["chat-0", "chat-1"], ["chat-2"]]),
    ],
)
def test_who_shares_a_device(plan: Plan, tmp_path: Path, devices: tuple[str, ...], groups: list[list[str]]) -> None:
    found = _sharing(replicas(plan, tmp_path, *devices))
    assert [[one.status.name for one in group] for group in found] == groups


@pytest.mark.parametrize(("device", "at_once"), [("a", 1), (CPU, 3)])
async def test_replicas_of_one_card_start_one_after_the_other(
    plan: Plan, tmp_path: Path, device: str, at_once: int
) -> None:
    starting, most = 0, 0

    async def start() -> None:
        nonlocal starting, most
        starting += 1
        most = max(most, starting)
        await asyncio.sleep(0.01)
        starting -= 1

    workers = replicas(plan, tmp_path, device, device, device)
    for one in workers:
        one.start = start  # type: ignore[method-assign]
    await start_all(workers)
    assert most == at_once


async def test_the_first_error_of_a_start_comes_out_by_itself(plan: Plan, tmp_path: Path) -> None:
    workers = replicas(plan, tmp_path, "a", "b")
    for one in workers:
        one.launch.command = ("/bin/false",)
    with pytest.raises(DoesNotFit):
        await start_all(workers)


async def test_one_after_the_other_is_drained_and_restarted(plan: Plan, tmp_path: Path) -> None:
    workers = replicas(plan, tmp_path, CPU, CPU)
    await start_all(workers)
    before = [one.pid for one in workers]
    workers[0].status.load.num_requests = 1  # somebody is answered
    watching = asyncio.create_task(watch_all(workers))
    rolling = RollingRestart(workers)
    try:
        assert rolling.begin() == ("chat-0", "chat-1")
        await until(lambda: workers[0].status.state is WorkerState.DRAINING)
        await asyncio.sleep(0.2)
        assert rolling.begin() is None, "one is under way"
        assert workers[0].pid == before[0] and workers[1].status.state is WorkerState.READY
        workers[0].status.load.num_requests = 0
        await until(lambda: workers[1].status.state is not WorkerState.READY)
        assert workers[0].status.state is WorkerState.READY, "the next one follows when the first is back"
        await until(lambda: all(one.status.num_restarts == 1 and one.pid for one in workers))
        await until(lambda: all(one.status.state is WorkerState.READY for one in workers))
        assert not set(before) & {one.pid for one in workers}
    finally:
        await rolling.stop()
        watching.cancel()
        await asyncio.gather(*(one.stop() for one in workers))


async def test_a_worker_that_is_not_started_again_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restarts, "_MAX_FAILED_STARTS", 2)
    status = WorkerStatus(WorkerFacts("chat", ("m",), UnixAddress(Path("/none")), "k", 1, 1))
    heard: list[tuple[str, str, dict[str, Any]]] = []

    async def fails() -> None:
        raise WorkerFailed("no memory")

    told = restarts.Restarts(status, lambda *event: heard.append(event))
    with pytest.raises(WorkerFailed, match="failed to start 2 times: no memory"):
        await told.start_again(fails, "it ended", 0.0)
    assert [event for _, event, _ in heard] == ["restart", "restart", "failed"]
    assert heard[-1] == ("chat", "failed", {"reason": "no memory"})


async def test_the_service_ends_with_the_last_replica(
    plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(restarts, "FIRST_PAUSE_S", 0.0)
    monkeypatch.setattr(restarts, "_LONGEST_PAUSE_S", 0.0)
    monkeypatch.setattr(restarts, "_MAX_FAILED_STARTS", 1)
    workers = replicas(plan, tmp_path, CPU, CPU)
    await start_all(workers)
    watching = asyncio.create_task(watch_all(workers))
    for one in workers:  # they live, and could not be started again
        one.launch.command = ("/bin/false",)
    assert workers[0]._child is not None and workers[1]._child is not None
    await workers[0]._child.end()
    await until(lambda: workers[0].status.state is WorkerState.FAILED)
    await asyncio.sleep(0.05)
    assert not watching.done(), "the other one serves"
    await workers[1]._child.end()
    async with asyncio.timeout(60):
        with pytest.raises(WorkerFailed, match="chat-1"):
            await watching
