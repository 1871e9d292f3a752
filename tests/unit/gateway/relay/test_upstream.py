"""A worker that somebody else runs may be somewhere else after a restart."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from qserve.gateway.processes.statuses import changing, document_of, status_of, update
from qserve.gateway.relay.admission import Requester
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
