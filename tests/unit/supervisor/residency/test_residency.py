"""Models that take turns: real child processes, no engine; requests are what the gateway would count."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from qserve.errors import QserveError
from qserve.planner.residency.footprint import RAM, Budget, Footprint
from qserve.planner.residency.schedule import Rules
from qserve.runs import RunStore
from qserve.runs.writer import NewRun
from qserve.service.residents import Keeping
from qserve.supervisor.record import Recording, RunRecord
from qserve.supervisor.residency import residency as module
from qserve.supervisor.residency.residency import Residency
from qserve.supervisor.residency.resident import Resident
from qserve.supervisor.residency.worker import OnDemandWorker
from qserve.wire.errors import ApiError
from qserve.worker.base import UnixAddress, WorkerFacts, WorkerState, WorkerStatus
from tests.processes import is_running
from tests.unit.supervisor.test_worker import LIVES, REFUSES, Heard, Script, plan, until

__all__ = ["plan"]  # a fixture


class Turns:
    """A residency of workers that run `code`, each of 60 bytes of 100 where nothing else is said."""

    def __init__(self, plan: Any, folder: Path, codes: dict[str, str], **keeping: Keeping) -> None:
        self.record = RunRecord(
            folder / "runs" / "r", Recording(folder, NewRun("r", [], {}, {}, folder / "runs" / "r"))
        )
        self.launches = {name: Script(plan, code) for name, code in codes.items()}
        self.heard = {name: Heard() for name in codes}
        self.residents = {
            name: Resident(
                OnDemandWorker(_status(name, folder), self.launches[name], folder / f"{name}.log", self.heard[name]),
                Footprint(name, {RAM: 60}, load_s=0.1),
                keeping.get(name, Keeping()),
            )
            for name in codes
        }
        rules = Rules(window_s=0.2)
        self.residency = Residency(list(self.residents.values()), Budget({RAM: 100}), rules, self.record)

    def state(self, name: str) -> WorkerState:
        return self.residents[name].worker.status.state

    def ask(self, name: str) -> None:
        """A request arrives; it waits, or is being answered."""
        self.residents[name].worker.status.load.num_outstanding_requests += 1

    def answer(self, name: str) -> None:
        self.residents[name].worker.status.load.num_outstanding_requests -= 1

    def loaded(self) -> set[str]:
        return {name for name, one in self.residents.items() if one.worker.is_loaded}

    async def until_state(self, name: str, state: WorkerState) -> None:
        await until(lambda: self.state(name) is state)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Turns]:
        await self.residency.start()
        tasks = [asyncio.create_task(self.residency.run())]
        tasks += [asyncio.create_task(one.worker.watch()) for one in self.residents.values()]
        try:
            yield self
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for one in self.residents.values():
                await one.worker.stop()
            self.record.end(0)


def _status(name: str, folder: Path) -> WorkerStatus:
    facts = WorkerFacts(name, (name,), UnixAddress(folder / name), "k", 4, 512, role="chat", loads_on_demand=True)
    return WorkerStatus(facts)


@pytest.fixture
def turns(plan: Any, tmp_path: Path) -> Callable[..., Turns]:
    return lambda *args, **keeping: Turns(plan, tmp_path, *args, **keeping)


async def test_the_first_is_there_and_the_other_comes_when_it_is_asked_for(turns: Callable[..., Turns]) -> None:
    async with turns({"a": LIVES, "b": LIVES}).running() as one:
        assert (one.state("a"), one.state("b")) == (WorkerState.READY, WorkerState.IDLE)
        pid = one.residents["a"].worker.pid
        assert pid is not None
        one.ask("b")
        await one.until_state("b", WorkerState.READY)
        assert one.state("a") is WorkerState.IDLE and not is_running(pid)
        assert one.residents["b"].worker.status.num_restarts == 0 and one.residents["b"].turns.num_loads == 1
        one.answer("b")
        one.ask("a")
        await one.until_state("a", WorkerState.READY)
        assert one.residents["a"].worker.status.num_restarts == 1, "it is another life"


async def test_running_requests_finish_first_and_only_one_loads_at_a_time(turns: Callable[..., Turns]) -> None:
    async with turns({"a": LIVES, "b": LIVES, "c": LIVES}).running() as one:
        running = one.residents["a"].worker.status.load
        one.ask("a")
        running.num_requests = 1
        one.ask("b")
        one.ask("c")
        await one.until_state("a", WorkerState.UNLOADING)
        await asyncio.sleep(0.3)
        assert one.loaded() == {"a"}, "nothing starts before its memory is free"
        assert one.residents["a"].worker.status.is_awaited
        running.num_requests = 0
        one.answer("a")
        seen = set()

        def all_had_their_turn() -> bool:
            assert len(one.loaded()) <= 1
            seen.update(name for name in "bc" if one.state(name) is WorkerState.READY)
            return seen == {"b", "c"}

        await until(all_had_their_turn)


async def test_a_model_that_can_not_be_loaded_gives_its_place_back(
    turns: Callable[..., Turns], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_AGAIN_S", 0.5)
    async with turns({"a": LIVES, "b": REFUSES}).running() as one:
        one.ask("b")
        await one.until_state("b", WorkerState.FAILED)
        assert "it could not be loaded: ['too big'] 3" in one.residents["b"].worker.status.detail
        assert not one.residents["b"].worker.status.is_awaited, "who waits is told"
        await one.until_state("a", WorkerState.READY)
        one.answer("b")
        await one.until_state("b", WorkerState.IDLE)
        one.launches["b"].command = one.launches["a"].command
        one.ask("b")
        await one.until_state("b", WorkerState.READY)


async def test_one_that_dies_comes_back_in_its_place(turns: Callable[..., Turns]) -> None:
    async with turns({"a": LIVES, "b": LIVES}).running() as one:
        pid = one.residents["a"].worker.pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        await until(lambda: one.residents["a"].worker.pid != pid)
        await one.until_state("a", WorkerState.READY)
        assert one.loaded() == {"a"}


async def test_one_that_restarts_again_and_again_leaves_when_another_is_asked_for(turns: Callable[..., Turns]) -> None:
    async with turns({"a": LIVES, "b": LIVES}).running() as one:
        worker = one.residents["a"].worker
        one.launches["a"].command = (*one.launches["a"].command[:2], REFUSES)
        assert worker.pid is not None
        os.kill(worker.pid, signal.SIGKILL)
        await until(lambda: len(one.heard["a"].of("restart")) >= 2)
        one.ask("b")
        await one.until_state("b", WorkerState.READY)
        assert one.state("a") is WorkerState.IDLE


async def test_idle_ones_leave_after_their_time_and_are_loaded_again(turns: Callable[..., Turns]) -> None:
    async with turns({"a": LIVES}, a=Keeping(ttl_s=0.3)).running() as one:
        await one.until_state("a", WorkerState.IDLE)
        one.ask("a")
        await one.until_state("a", WorkerState.READY)
        await asyncio.sleep(0.5)
        assert one.state("a") is WorkerState.READY, "it has a request"


async def test_an_answer_between_two_looks_counts(turns: Callable[..., Turns]) -> None:
    async with turns({"a": LIVES}, a=Keeping(ttl_s=0.4)).running() as one:
        for _ in range(20):
            await asyncio.sleep(0.05)
            one.residents["a"].worker.status.load.num_pieces += 1
            assert one.state("a") is WorkerState.READY
        assert 0 < one.residents["a"].turns.served_s < 60
        await one.until_state("a", WorkerState.IDLE)


async def test_pinned_ones_stay_and_who_waits_in_vain_is_told(turns: Callable[..., Turns]) -> None:
    async with turns({"a": LIVES, "b": LIVES}, b=Keeping(is_pinned=True)).running() as one:
        assert one.loaded() == {"b"}, "pinned ones are first"
        one.ask("a")
        await one.until_state("a", WorkerState.FAILED)
        assert one.residents["a"].worker.status.detail.startswith("a has no room beside b, pinned")
        with pytest.raises(ApiError, match="a has no room beside b"):
            await one.residency.control("load", "a")
        with pytest.raises(ApiError, match=r"'a' can't be pinned beside b: 20 B are missing"):
            await one.residency.control("pin", "a")
        await one.residency.control("unpin", "b")
        await one.residency.control("load", "a")
        await one.until_state("a", WorkerState.READY)


async def test_what_is_asked_of_it_over_http(turns: Callable[..., Turns]) -> None:
    async with turns({"a": LIVES, "b": LIVES}, b=Keeping(preload=False)).running() as one:
        shown = await one.residency.control("unload", "a")
        assert (shown["state"], shown["num_loads"]) == ("idle", 1)
        shown = await one.residency.control("pin", "b")
        assert shown["is_pinned"]
        await one.until_state("b", WorkerState.READY)
        rows = await one.residency.control("show")
        assert [(row["name"], row["state"], row["planned_bytes"]) for row in rows] == [
            ("a", "idle", 60),
            ("b", "ready", 60),
        ]
        with pytest.raises(ApiError, match="'c' is always in memory"):
            await one.residency.control("load", "c")


async def test_one_that_does_not_run_holds_nothing(turns: Callable[..., Turns]) -> None:
    """A service that stops asks all once more, whatever their state."""
    async with turns({"a": LIVES, "b": LIVES}).running() as one:
        assert await one.residents["a"].worker.memory()
        assert await one.residents["b"].worker.memory() == {}
        await one.residency.control("unload", "a")
        assert await one.residents["a"].worker.memory() == {}


async def test_one_that_is_to_leave_the_moment_it_is_there_is_ended(turns: Callable[..., Turns]) -> None:
    one = turns({"a": LIVES})
    worker = one.residents["a"].worker
    await worker.load()
    leaving, watching = asyncio.create_task(worker.unload("it is to leave")), asyncio.create_task(worker.watch())
    await leaving
    assert worker.pid is not None and not is_running(worker.pid)
    watching.cancel()
    one.record.end(0)


async def test_a_start_of_a_service_that_fails_is_its_error(turns: Callable[..., Turns]) -> None:
    one = turns({"a": REFUSES})
    with pytest.raises(QserveError, match="too big"):
        await one.residency.start()


async def test_loads_are_recorded_for_the_next_plan(turns: Callable[..., Turns], plan: Any, tmp_path: Path) -> None:
    one = turns({"a": f"held = bytearray(b'1' * (32 << 20)); {LIVES}", "b": LIVES})
    one.record.plan("a", plan, ("a",))
    async with one.running():
        one.ask("b")
        await one.until_state("b", WorkerState.READY)
    store = RunStore.open_existing(tmp_path)
    assert store is not None
    events = {event.event: event.details for event in store.events(store.run())}
    assert {"loaded", "unloaded"} <= set(events)
    held = events["unloaded"]["held_bytes"]
    assert held > 20 << 20, "it held 32 MiB beside Python"
    assert isinstance(events["unloaded"]["reclaimed_bytes"], int)
    learned = store.loads(plan.engine, plan.shape)
    assert learned is not None and learned.load_s > 0 and learned.starting_bytes > 0, "a process is more than 60 bytes"
    assert store.loads(plan.engine, "another shape") is None
