"""A worker that somebody else runs may be somewhere else after a restart."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from qserve.gateway.processes.statuses import changing, document_of, status_of, update
from qserve.gateway.relay.admission import Requester, Requeued
from qserve.gateway.relay.replica_set import ReplicaSet
from qserve.gateway.relay.upstream import Upstream
from qserve.gateway.settings import GatewaySettings
from qserve.wire.errors import ApiError
from qserve.worker.base import TcpAddress, WorkerFacts, WorkerState, WorkerStatus


def test_requests_go_to_where_the_worker_is_now() -> None:
    status = WorkerStatus(WorkerFacts("chat", ("m",), TcpAddress("10.0.0.1", 20000), "key", 4, 512))
    upstream = Upstream(status, GatewaySettings())
    before = upstream.client
    assert upstream.client is before
    status.facts = replace(status.facts, max_num_seqs=2)
    assert upstream.client is before, "it is where it was"
    status.facts = replace(status.facts, address=TcpAddress("10.0.0.2", 20000))
    assert upstream.client.address == TcpAddress("10.0.0.2", 20000)


async def test_a_worker_that_refuses_loses_its_queue_and_no_running_request() -> None:
    status = WorkerStatus(WorkerFacts("chat", ("m",), TcpAddress("10.0.0.1", 20000), "key", 1, 512), WorkerState.READY)
    upstream = Upstream(status, GatewaySettings())
    held = await upstream.admission.enter(1, Requester("a"))
    waiting = asyncio.create_task(upstream.admission.enter(1, Requester("a")))
    await asyncio.sleep(0)
    down = upstream.down
    status.refusal = "the machine has 1 GiB of 64 GiB free"
    upstream.observe()
    with pytest.raises(ApiError, match=r"'m' takes no new requests now: the machine has 1 GiB") as refused:
        await waiting
    assert (refused.value.status, refused.value.code, refused.value.headers["retry-after"]) == (503, "memory_low", "10")
    assert upstream.down is down and not down.is_set, "its running requests go on"
    assert (upstream.is_ready, upstream.is_up) == (False, True)
    upstream.admission.leave(held)
    status.refusal = ""
    upstream.check_ready()


def test_what_a_worker_refuses_for_reaches_other_processes() -> None:
    status = WorkerStatus(WorkerFacts("chat", ("m",), TcpAddress("10.0.0.1", 20000), "key", 1, 512), WorkerState.READY)
    elsewhere = status_of(document_of(status))
    before = changing(status)
    status.refusal = "why"
    assert changing(status) != before
    update(elsewhere, document_of(status))
    assert elsewhere.refusal == "why"


def on_demand(max_queue: int = 8, load_wait_s: float = 60) -> tuple[WorkerStatus, Upstream]:
    facts = WorkerFacts("chat", ("m",), TcpAddress("10.0.0.1", 20000), "key", 1, 512, loads_on_demand=True)
    status = WorkerStatus(facts, WorkerState.IDLE, "it is not in memory")
    return status, Upstream(status, GatewaySettings(max_queue=max_queue, load_wait_s=load_wait_s))


async def test_requests_wait_for_a_model_that_is_loaded_on_demand_in_their_order() -> None:
    status, upstream = on_demand()
    order: list[int] = []

    async def wait(number: int) -> None:
        await upstream.until_loaded()
        order.append(number)

    waiting = [asyncio.create_task(wait(number)) for number in range(5)]
    await asyncio.sleep(0.1)
    assert upstream.num_waiting == 5 and not order
    status.state = WorkerState.STARTING
    await asyncio.sleep(0.1)
    assert not order
    status.state = WorkerState.READY
    await asyncio.gather(*waiting)
    assert order == [0, 1, 2, 3, 4] and upstream.num_waiting == 0
    await upstream.until_loaded()


async def test_an_engine_that_tells_no_fields_keeps_no_request_waiting() -> None:
    status, upstream = on_demand()
    waiting = asyncio.create_task(ReplicaSet([upstream]).introduced())
    await asyncio.sleep(0.1)
    assert not waiting.done() and status.load.num_wanting == 1
    status.state = WorkerState.READY
    async with asyncio.timeout(10):
        assert (await waiting).request_fields is None
    assert status.load.num_wanting == 0


async def test_no_more_wait_for_a_load_than_the_queue_holds() -> None:
    _, upstream = on_demand(max_queue=2)
    waiting = [asyncio.create_task(upstream.until_loaded()) for _ in range(2)]
    await asyncio.sleep(0)
    with pytest.raises(ApiError) as refused:
        await upstream.until_loaded()
    assert (refused.value.status, refused.value.code) == (429, "queue_full")
    for one in waiting:
        one.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    assert upstream.num_waiting == 0


async def test_a_wait_for_a_load_ends() -> None:
    _, upstream = on_demand(load_wait_s=0.1)
    with pytest.raises(ApiError, match=r"'m' was not loaded within 0.1 s: it is not in memory") as refused:
        await upstream.until_loaded()
    assert (refused.value.status, refused.value.code) == (503, "model_not_loaded")


async def test_a_load_that_fails_ends_the_wait_with_its_reason() -> None:
    status, upstream = on_demand()
    waiting = asyncio.create_task(upstream.until_loaded())
    await asyncio.sleep(0)
    status.detail, status.state = "it could not be loaded: no weights", WorkerState.FAILED
    await waiting
    with pytest.raises(ApiError, match=r"'m' is failed: it could not be loaded: no weights"):
        upstream.check_ready()


async def test_a_model_that_leaves_keeps_its_running_requests_and_its_queue_waits_on() -> None:
    status, upstream = on_demand()
    status.state = WorkerState.READY
    held = await upstream.admission.enter(1, Requester("a"))
    waiting = [asyncio.create_task(upstream.admission.enter(1, Requester("a"))) for _ in range(2)]
    await asyncio.sleep(0)
    down = upstream.down
    status.state = WorkerState.UNLOADING
    upstream.observe()
    for one in waiting:
        with pytest.raises(Requeued) as moved:
            await one
        assert moved.value.to is upstream
    assert not down.is_set, "what runs is answered"
    upstream.admission.leave(held)
    status.state = WorkerState.IDLE
    upstream.observe()
    assert down.is_set
