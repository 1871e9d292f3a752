"""A worker of the cluster as the service has it, beside agents that fail as they are told. Real ones: tests/tiny."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from qserve.cluster import placed_agent
from qserve.cluster import worker as module
from qserve.cluster.messages import AgentStatus, Assignment, Failure, GatewayStatus
from qserve.cluster.placement import Reservation
from qserve.cluster.settings import PortRange, RaySettings
from qserve.cluster.worker import RayWorker
from qserve.core.hardware import Hardware
from qserve.errors import DoesNotFit, WorkerFailed
from qserve.hub import resolve
from qserve.planner import PlanRequest, make_plan
from qserve.supervisor.deployment import ModelDeployment
from qserve.supervisor.liveness import restarts
from qserve.units import GIB
from qserve.worker.base import TcpAddress, WorkerFacts, WorkerState, WorkerStatus

LIMIT_S = 30.0
CPU_NODE = Hardware((), 32 * GIB, 30 * GIB, 8)
PLAN = make_plan(resolve("Qwen/Qwen3-0.6B"), CPU_NODE, PlanRequest(engine="transformers", max_model_len=512))


class Agent:
    """Answers for a worker that is ready at `port`, until `lost` or `failure` say otherwise."""

    def __init__(self, port: int, key: str) -> None:
        self.address, self.key = TcpAddress("127.0.0.1", port), key
        self.failure: Failure | None = None
        self.lost = False
        self.why_lost: Exception = ConnectionError("The actor died unexpectedly\nbefore finishing this task.")
        self.num_renewed = 0
        self.has_ended = False
        self.num_restarts = 0
        self.outside_deaths: frozenset[int] = frozenset()
        for name in ("exchange", "renew", "end"):
            setattr(self, name, SimpleNamespace(remote=getattr(self, f"_{name}")))

    async def _exchange(self, told: GatewayStatus) -> AgentStatus:
        await asyncio.sleep(0.005)
        if self.lost:
            raise self.why_lost
        facts = WorkerFacts(
            "chat-0",
            ("x",),
            self.address,
            self.key,
            3,
            512,
            role="chat",
            tokenizer=Path("/there"),
            schema_library="xgrammar",
        )
        phases_s = {"loading weights": 1.5}
        state = WorkerState.STARTING if self.failure else WorkerState.READY
        lives = (self.num_restarts, self.outside_deaths)
        return AgentStatus(state, "", facts, *lives, phases_s, (), b"a line\n", (), PLAN, self.failure)

    async def _renew(self) -> None:
        self.num_renewed += 1

    async def _end(self) -> None:
        self.has_ended = True


class FakeReservations:
    """Nodes n0, n1, … one after the other, each with an agent of its own."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.agents: list[Agent] = []
        self.given_back: list[tuple[str, bool]] = []
        self.keys: list[str] = []
        self.prepare: Callable[[Agent], None] = lambda agent: None

    async def reserve(self, needs: dict[str, float], limit_s: float) -> Reservation:
        return Reservation(None, f"n{len(self.agents)}", "127.0.0.1")

    def start(self, reservation: Reservation, needs: dict[str, float], assignment: Assignment) -> None:
        reservation.agent = Agent(self.port, assignment.key)
        self.prepare(reservation.agent)
        self.keys.append(assignment.key)
        self.agents.append(reservation.agent)

    def give_back(self, reservation: Reservation, needs: dict[str, float], *, avoid: bool) -> None:
        self.given_back.append((reservation.node, avoid))


@pytest.fixture
async def port() -> AsyncIterator[int]:
    """A worker's port: whatever is asked, all is well."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()[1]


@pytest.fixture
def cluster(port: int) -> FakeReservations:
    return FakeReservations(port)


@pytest.fixture
async def worker(
    cluster: FakeReservations, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[RayWorker]:
    for where, name in (
        (restarts, "FIRST_PAUSE_S"),
        (restarts, "_LONGEST_PAUSE_S"),
        (placed_agent, "_RENEW_S"),
        (module.health, "INTERVAL_S"),
    ):
        monkeypatch.setattr(where, name, 0.01)
    status = WorkerStatus(WorkerFacts("chat-0", ("x",), TcpAddress("", 0), "key", 4, 512, role="chat"))
    deployment = ModelDeployment("chat", Path("/models/x"), ("x",), PLAN)
    settings = RaySettings("auto", PortRange(20000, 20999))
    one = RayWorker(
        deployment,
        "",
        status,
        {"CPU": 1.0},
        cluster,
        settings,
        tmp_path / "chat-0.log",
        lambda *_: None,  # type: ignore[arg-type]
    )
    try:
        yield one
    finally:
        await one.stop()


async def until(holds: Callable[[], Any]) -> None:
    async with asyncio.timeout(LIMIT_S):
        while not holds():
            await asyncio.sleep(0.005)


async def watched(worker: RayWorker, meanwhile: Callable[[], Awaitable[None]]) -> None:
    """Something happens while somebody stays with the worker."""
    watching = asyncio.create_task(worker.watch())
    try:
        await meanwhile()
    finally:
        watching.cancel()
        with suppress(asyncio.CancelledError):
            await watching


async def test_it_is_ready_with_what_the_worker_says_of_itself(
    worker: RayWorker, cluster: FakeReservations, port: int
) -> None:
    await worker.start()
    status, facts = worker.status, worker.status.facts
    assert (status.state, facts.address, facts.max_num_seqs) == (WorkerState.READY, TcpAddress("127.0.0.1", port), 3)
    assert (facts.schema_library, facts.tokenizer) == ("xgrammar", None), "as the engine has it, at the folder here"
    assert facts.key == cluster.keys[0] != "key"
    assert worker.phases_s == {"loading weights": 1.5}
    assert worker._log_file.read_bytes().startswith(b"a line\n")


async def test_the_lease_is_renewed_although_nobody_watches(worker: RayWorker, cluster: FakeReservations) -> None:
    """A service that drains, or tests its model for minutes, must not lose its workers meanwhile."""
    await worker.start()
    await until(lambda: cluster.agents[0].num_renewed > 3)
    await worker.stop()
    renewed = cluster.agents[0].num_renewed
    await asyncio.sleep(0.05)
    assert cluster.agents[0].num_renewed == renewed


async def test_a_lost_agent_is_replaced_elsewhere(worker: RayWorker, cluster: FakeReservations) -> None:
    await worker.start()

    async def lose() -> None:
        cluster.agents[0].lost = True
        await until(lambda: len(cluster.agents) == 2 and worker.status.state is WorkerState.READY)

    await watched(worker, lose)
    assert cluster.given_back[0] == ("n0", True), "its node is not asked again"
    assert worker.status.num_restarts == 1
    assert cluster.keys[0] != cluster.keys[1]


async def test_a_worker_that_can_not_be_reached_from_here_is_replaced(
    worker: RayWorker, cluster: FakeReservations, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever its agent and Ray say of it."""
    await worker.start()
    monkeypatch.setattr(module, "_HEALTH_TIMEOUT_S", 1.0)
    asked = worker._requests.send

    async def ask(method: str, path: str, body: bytes, timeout_s: float) -> tuple[int, bytes]:
        return (0, b"") if len(cluster.agents) == 1 else await asked(method, path, body, timeout_s)

    monkeypatch.setattr(worker._requests, "send", ask)

    async def wait() -> None:
        await until(lambda: len(cluster.agents) == 2 and worker.status.state is WorkerState.READY)

    await watched(worker, wait)
    assert cluster.given_back[0] == ("n0", True)


async def test_why_it_did_not_start_is_the_same_kind_of_error_here(
    worker: RayWorker, cluster: FakeReservations
) -> None:
    def refuse(agent: Agent) -> None:
        agent.failure = Failure("DoesNotFit", "the KV pool needs 2 GiB more; lower --max-model-len")

    cluster.prepare = refuse
    with pytest.raises(DoesNotFit, match="lower --max-model-len"):
        await worker.start()
    assert cluster.given_back == [("n0", True)], "another node may have what this one lacks"
    assert cluster.agents[0].has_ended


async def test_a_closed_port_is_named_with_its_range(worker: RayWorker, cluster: FakeReservations) -> None:
    def move(agent: Agent) -> None:
        agent.address = TcpAddress("127.0.0.1", 1)

    cluster.prepare = move
    with pytest.raises(WorkerFailed, match="port 1 can't be reached from here; open the ports 20000-20999"):
        await worker.start()


async def test_one_that_is_not_wanted_is_idle_until_it_is(worker: RayWorker, cluster: FakeReservations) -> None:
    worker.is_wanted = False
    await worker.start()
    assert (worker.status.state, cluster.agents) == (WorkerState.IDLE, [])

    async def want() -> None:
        worker.is_wanted = True
        await until(lambda: worker.status.state is WorkerState.READY)

    await watched(worker, want)


async def test_one_that_is_ended_answers_its_requests_first(worker: RayWorker, cluster: FakeReservations) -> None:
    await worker.start()
    worker.status.load.num_requests = 1

    async def end() -> None:
        worker.is_wanted = False
        await until(lambda: worker.status.state is WorkerState.DRAINING)
        await asyncio.sleep(0.05)
        assert not cluster.given_back
        worker.status.load.num_requests = 0
        await until(lambda: worker.status.state is WorkerState.IDLE)

    await watched(worker, end)
    assert cluster.agents[0].has_ended
    assert cluster.given_back == [("n0", False)]
    assert worker.status.num_restarts == 0


async def test_a_restart_that_was_asked_for_drains_and_comes_back(worker: RayWorker, cluster: FakeReservations) -> None:
    await worker.start()

    async def restart() -> None:
        async with asyncio.timeout(LIMIT_S):
            await worker.restart()

    await watched(worker, restart)
    assert worker.status.state is WorkerState.READY
    assert len(cluster.agents) == 2


async def test_a_wish_to_restart_one_that_is_idle_waits_for_nothing(
    worker: RayWorker, cluster: FakeReservations
) -> None:
    """Else a rolling restart would wait for the load, and refuse the next one meanwhile."""
    worker.is_wanted = False
    await worker.start()

    async def restart() -> None:
        async with asyncio.timeout(LIMIT_S):
            await worker.restart()
        worker.is_wanted = True
        await until(lambda: worker.status.state is WorkerState.READY)
        await asyncio.sleep(0.1)

    await watched(worker, restart)
    assert len(cluster.agents) == 1, "it was restarted after it had just started"


async def test_lives_are_told_apart_although_an_agent_counts_from_0(
    worker: RayWorker, cluster: FakeReservations
) -> None:
    await worker.start()

    async def lose() -> None:
        cluster.agents[0].num_restarts = 2
        await until(lambda: worker.status.num_restarts == 2)
        cluster.agents[0].lost = True
        await until(lambda: len(cluster.agents) == 2 and worker.status.state is WorkerState.READY)

    await watched(worker, lose)
    assert worker.status.num_restarts == 3


class OutOfMemoryError(Exception):
    """As Ray's own, by its name."""


@pytest.mark.parametrize(
    ("why", "is_outside"),
    [
        (ConnectionError("The actor died because its node has died."), True),
        (OutOfMemoryError("Task was killed due to the node running low on memory."), False),
        (ConnectionError("Worker exit type: NODE_OUT_OF_MEMORY"), False),
    ],
    ids=["node", "ray's memory monitor", "exit type"],
)
async def test_no_request_is_blamed_for_a_lost_node_or_a_kill_on_one(
    worker: RayWorker, cluster: FakeReservations, why: Exception, is_outside: bool
) -> None:
    """Lives count on over agents, and so do those that were ended from outside; want of memory may be a request's."""
    await worker.start()

    async def lose() -> None:
        first = cluster.agents[0]
        first.num_restarts, first.outside_deaths = 3, frozenset({0, 2})
        await until(lambda: worker.status.num_restarts == 3)
        first.why_lost, first.lost = why, True
        await until(lambda: len(cluster.agents) == 2 and worker.status.state is WorkerState.READY)
        second = cluster.agents[1]
        second.num_restarts, second.outside_deaths = 1, frozenset({0})
        await until(lambda: worker.status.num_restarts == 5)

    await watched(worker, lose)
    assert worker.status.outside_deaths == {0, 2, 4} | ({3} if is_outside else set())


async def test_what_ray_fails_with_is_tried_again(worker: RayWorker, cluster: FakeReservations) -> None:
    """A head node that is gone for a moment must not end the service."""
    await worker.start()
    reserve, failed = cluster.reserve, []

    async def fail_once(needs: dict[str, float], limit_s: float) -> Reservation:
        if not failed:
            failed.append("once")
            raise KeyError("the node that was just there")
        return await reserve(needs, limit_s)

    async def lose() -> None:
        cluster.reserve = fail_once  # type: ignore[method-assign]
        cluster.agents[0].lost = True
        await until(lambda: len(cluster.agents) == 2 and worker.status.state is WorkerState.READY)

    await watched(worker, lose)
    assert failed == ["once"]


async def test_one_that_does_not_start_may_be_unwanted_meanwhile(worker: RayWorker, cluster: FakeReservations) -> None:
    worker.is_wanted = False
    await worker.start()

    async def refuse(needs: dict[str, float], limit_s: float) -> Reservation:
        worker.is_wanted = False
        raise WorkerFailed("no node had it free")

    async def want() -> None:
        reserve, cluster.reserve = cluster.reserve, refuse  # type: ignore[method-assign]
        worker.is_wanted = True
        await until(lambda: not worker.is_wanted and worker.status.state is WorkerState.IDLE)
        cluster.reserve = reserve  # type: ignore[method-assign]
        worker.is_wanted = True
        await until(lambda: worker.status.state is WorkerState.READY)

    await watched(worker, want)
