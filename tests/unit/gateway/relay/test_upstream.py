"""A worker that somebody else runs may be somewhere else after a restart."""

from __future__ import annotations

from dataclasses import replace

from qserve.gateway.relay.upstream import Upstream
from qserve.gateway.settings import GatewaySettings
from qserve.worker.base import TcpAddress, WorkerFacts, WorkerStatus


def test_requests_go_to_where_the_worker_is_now() -> None:
    status = WorkerStatus(WorkerFacts("chat", ("m",), TcpAddress("10.0.0.1", 20000), "key", 4, 512))
    upstream = Upstream(status, GatewaySettings())
    before = upstream.client
    assert upstream.client is before
    status.facts = replace(status.facts, max_num_seqs=2)
    assert upstream.client is before, "it is where it was"
    status.facts = replace(status.facts, address=TcpAddress("10.0.0.2", 20000))
    assert upstream.client.address == TcpAddress("10.0.0.2", 20000)
