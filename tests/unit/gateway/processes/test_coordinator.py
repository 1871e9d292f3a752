"""What several gateway processes have in common, each part by itself; tests/tiny/gateway runs them together."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from dataclasses import replace
from pathlib import Path

import pytest

from qserve.engines.vllm.engine import ENGINE
from qserve.gateway.key_throttle import KeyThrottle
from qserve.gateway.processes import coordinator as module
from qserve.gateway.processes.channel import Channel
from qserve.gateway.processes.coordinator import Coordinator, Service
from qserve.gateway.processes.coordinator_client import CoordinatorClient
from qserve.gateway.processes.signed_sessions import SignedSessions
from qserve.gateway.processes.statuses import changing, document_of, status_of, update
from qserve.gateway.run_history import RunHistory
from qserve.gateway.settings import GatewaySettings
from qserve.gateway.telemetry.metrics import GatewayMetrics
from qserve.gateway.web.session import SESSION_S
from qserve.wire.engine_fields import fields_of
from qserve.wire.errors import ApiError
from qserve.worker.base import TcpAddress, UnixAddress, WorkerFacts, WorkerState, WorkerStatus


def status(state=WorkerState.STARTING, **facts):
    where = UnixAddress(Path("/run/w.sock"))
    return WorkerStatus(WorkerFacts("chat-0", ("m",), where, "wk", 8, 4096, role="chat", **facts), state)


def test_a_status_comes_over_whole():
    document = {"openapi": "3.1.0", "paths": {}, "components": {"schemas": {}}}
    one = status(
        WorkerState.READY,
        wire=ENGINE.wire,
        engine="vllm",
        adapters=("a",),
        tokenizer=Path("/m"),
        plan={"fits": True},
        request_fields=fields_of(document),
        vocab_size=7,
        has_report=True,
        max_prompt_bytes=9,
        max_positions=11,
    )
    one.num_restarts, one.start_phases_s, one.detail = 3, {"loading": 1.5}, "well"
    other = status_of(json.loads(json.dumps(document_of(one))))
    assert changing(other) == changing(one) and other.facts.request_fields.document == document
    assert (other.name, other.role, other.facts.wire, other.facts.engine) == (one.name, one.role, ENGINE.wire, "vllm")
    assert other.facts.tokenizer == one.facts.tokenizer


def test_a_worker_that_moved_is_asked_where_it_is_and_one_that_stayed_keeps_its_connections():
    one, other = status(), status_of(document_of(status()))
    facts = other.facts
    update(other, document_of(one))
    assert other.facts is facts
    one.facts = replace(one.facts, address=TcpAddress("10.0.0.2", 4711))
    update(other, document_of(one))
    assert other.facts.address == TcpAddress("10.0.0.2", 4711)


def test_a_session_of_one_process_is_known_to_the_others_until_it_signs_out():
    told = []
    one, other = SignedSessions("secret", (), told.append), SignedSessions("secret", (), told.append)
    token = one.begin()
    assert one.visitor(token) == other.visitor(token) is not None
    assert SignedSessions("another", (), told.append).visitor(token) is None
    one.end(token)
    assert one.visitor(token) is None and len(told) == 1
    other.has_ended(told[0])
    assert other.visitor(token) is None
    assert SignedSessions("secret", told, told.append).visitor(token) is None, "nor one that joined later"


@pytest.mark.parametrize("token", ["", "x", "..", "a.9999999999.b", "é.1.ü", "\ud800.1.2"])
def test_a_made_up_session_is_none(token):
    sessions = SignedSessions("secret", (), lambda digest: None)
    assert sessions.visitor(token) is None
    sessions.end(token)


def test_a_session_ends_after_a_day_and_nobody_prolongs_it():
    now = [1000.0]
    sessions = SignedSessions("secret", (), lambda digest: None, clock=lambda: now[0])
    token = sessions.begin()
    now[0] += SESSION_S + 1
    assert sessions.visitor(token) is None
    begin, ends, signature = token.split(".")
    assert sessions.visitor(f"{begin}.{int(ends) + 99999}.{signature}") is None


def test_wrong_keys_are_taken_over():
    one, other = KeyThrottle(), KeyThrottle()
    for _ in range(12):
        one.count_wrong("10.0.0.1")
    other.add(json.loads(json.dumps(one.counts())))
    assert other.pause_s("10.0.0.1", is_trusted=False) > 0 == other.pause_s("10.0.0.2", is_trusted=False)


def test_metrics_add_up():
    processes = [GatewayMetrics() for _ in range(3)]
    alone, total = GatewayMetrics(), GatewayMetrics()
    for index, one in enumerate(processes):
        for metrics in (one, alone):
            metrics.count_error(f"code-{index % 2}")
            metrics.itl.labels("m").observe(0.004 * (index + 1), 5)
    for one in processes:
        total.add(json.loads(json.dumps(one.counted())))

    def counted(metrics):
        lines = metrics.exposition().decode().splitlines()
        return sorted(line for line in lines if "resident" not in line)

    assert counted(total) == counted(alone)


class Pair:
    """Two ends of a channel; `heard` of the second, which answers questions by their arguments doubled."""

    async def __aenter__(self):
        self.heard, self.lost = [], asyncio.Event()
        self.one = Channel(lambda *_: None, lambda: None)
        self.two = Channel(self._hear, self.lost.set)
        loop = asyncio.get_running_loop()
        for channel, end in zip((self.one, self.two), socket.socketpair(), strict=True):
            await loop.create_unix_connection(lambda channel=channel: channel, sock=end)
        return self

    async def __aexit__(self, *_):
        self.one.close()
        self.two.close()
        await asyncio.sleep(0.01)

    def _hear(self, channel, number, name, arguments):
        self.heard.append((name, arguments))
        if name == "double":
            channel.answer(number, arguments * 2)
        elif name == "refuse":
            channel.refuse(number, ApiError(429, "full", "queue_full", retry_after_s=3))


async def test_messages_arrive_in_order_and_questions_are_answered():
    async with Pair() as pair:
        for index in range(5):
            pair.one.notify("count", index, "zwölf\n" * index)
        assert await asyncio.wait_for(pair.one.request("double", 7), 60) == [7, 7]
        assert [name for name, _ in pair.heard] == ["count"] * 5 + ["double"]
        assert pair.heard[4] == ("count", [4, "zwölf\n" * 4])
        with pytest.raises(ApiError) as refused:
            await asyncio.wait_for(pair.one.request("refuse"), 60)
        assert (refused.value.code, refused.value.retry_after_s) == ("queue_full", 3)


async def test_whoever_waits_hears_that_the_other_side_is_gone():
    async with Pair() as pair:
        asking = asyncio.create_task(pair.two.request("never"))
        await asyncio.sleep(0.01)
        pair.one.close()
        with pytest.raises(ConnectionError):
            await asyncio.wait_for(asking, 60)
        await asyncio.wait_for(pair.lost.wait(), 60)


@contextlib.asynccontextmanager
async def joined(count=2, **settings):
    """A coordinator, and so many who joined it; nobody listens."""
    service = Service(lambda: None, lambda: None, lambda row: None, RunHistory())
    coordinator = Coordinator(GatewaySettings(**settings), [status(state=WorkerState.READY)], service, None, count)
    coordinating = asyncio.create_task(coordinator.run())
    members = []
    for _ in range(count):
        ours, theirs = socket.socketpair()
        one = CoordinatorClient(lost=lambda: None)
        beginning = asyncio.create_task(one.begin(theirs))
        await coordinator.join("gateway", ours, {})
        await asyncio.wait_for(beginning, 60)
        one.gateway(None)
        members.append(one)
    yield coordinator, members
    for one in members:
        await one.close()
    for member in list(coordinator.members):
        await asyncio.wait_for(member.gone.wait(), 60)
    coordinating.cancel()


async def _until(holds):
    async with asyncio.timeout(60):
        while not holds():
            await asyncio.sleep(0.005)


async def test_keys_are_guessed_at_all_processes_together():
    async with joined(keys=("k",)) as (_, (one, other)):
        for at in range(12):
            (one, other)[at % 2]._throttle.count_wrong("10.0.0.1")
        await _until(lambda: other._throttle.pause_s("10.0.0.1", is_trusted=False) > 0)
        await _until(lambda: one._throttle.pause_s("10.0.0.1", is_trusted=False) > 0)


async def test_the_memory_for_bodies_is_divided():
    async with joined(max_bodies_bytes=1 << 30) as (coordinator, _):
        assert coordinator._settings.max_bodies_bytes == 1 << 29


async def test_the_supervisor_hears_of_all_who_wait_for_a_worker_and_forgets_who_is_gone():
    async with joined() as (coordinator, (one, other)):
        load = coordinator._upstreams[0].load
        for gateway, count in ((one, 2), (other, 3)):
            gateway._upstreams[0].load.num_awaited = count
            gateway._upstreams[0].load.num_pieces = 10
            gateway._tell_work()
        await _until(lambda: load.num_awaited == 5)
        assert load.num_pieces == 20
        await other.close()
        await _until(lambda: load.num_awaited == 2)
        assert load.num_pieces == 20


async def test_the_background_is_told_how_many_places_are_free():
    async with joined() as (_, (one, other)):
        for gateway in (one, other):
            await _until(lambda gateway=gateway: gateway._groups[0].num_free_in_background == 7)


async def test_a_process_that_does_not_tell_in_time_still_answers_somebody(monkeypatch):
    """Else a service that drains on a busy machine would cut it off, and say that everybody was answered."""
    async with joined() as (coordinator, (one, other)):
        one._in_flight.num_requests, other._in_flight.num_requests = 2, 3
        monkeypatch.setattr(module, "_ANSWER_S", 30)
        assert await coordinator.num_in_flight() == 5
        heard, other._channel._hear = other._channel._hear, lambda *_: None
        monkeypatch.setattr(module, "_ANSWER_S", 0.05)
        one._in_flight.num_requests = 0
        assert await coordinator.num_in_flight() == 3
        other._channel._hear, other._in_flight.num_requests = heard, 0
        monkeypatch.setattr(module, "_ANSWER_S", 30)
        assert await coordinator.num_in_flight() == 0
        await other.close()
        await _until(lambda: len(coordinator.members) == 1)
        assert await coordinator.num_in_flight() == 0


async def test_what_breaks_while_a_place_is_looked_for_is_told_to_who_waits(monkeypatch):
    async with joined() as (coordinator, (one, _)):
        replicas = one._groups[0]
        monkeypatch.setattr(coordinator._groups["chat"].poison, "check", lambda digest: 1 / 0)
        asked = replicas.routed("/v1/completions", b"{}", "m", 1, None)
        with pytest.raises(ApiError, match="its log has the details"):
            async with asyncio.timeout(60), replicas.slot(asked):
                pass


async def test_what_is_told_before_there_is_a_gateway_is_not_lost():
    """Else a process that imports longer than a worker starts would take that for starting for ever."""
    service = Service(lambda: None, lambda: None, lambda row: None, RunHistory())
    worker = status(state=WorkerState.STARTING)
    coordinator = Coordinator(GatewaySettings(keys=("k",)), [worker], service, None, 1)
    coordinating = asyncio.create_task(coordinator.run())
    ours, theirs = socket.socketpair()
    one, lost = CoordinatorClient(lost=lambda: lost.append("lost")), []
    beginning = asyncio.create_task(one.begin(theirs))
    member = await coordinator.join("gateway", ours, {})
    await asyncio.wait_for(beginning, 60)
    worker.state = WorkerState.READY
    asking = asyncio.create_task(member.channel.request("in flight"))
    member.channel.notify("wrong key", "10.0.0.1")
    await _until(lambda: len(one._early) >= 3)
    one.gateway(None)
    assert one._upstreams[0].is_ready and not lost
    assert await asyncio.wait_for(asking, 60) == 0
    await one.close()
    await asyncio.wait_for(member.gone.wait(), 60)
    coordinating.cancel()
