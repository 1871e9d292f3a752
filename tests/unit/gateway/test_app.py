"""A request is checked against one set of facts, whatever becomes of the replicas meanwhile."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from qserve.engines.vllm.engine import ENGINE
from qserve.gateway.app import build_gateway
from qserve.gateway.batches import GatewayAsService
from qserve.gateway.processes.shared import Shared
from qserve.gateway.relay.replica_set import ReplicaSet
from qserve.gateway.relay.upstream import Upstream
from qserve.gateway.settings import GatewaySettings
from qserve.wire.engine_fields import fields_of
from qserve.worker.base import UnixAddress, WorkerFacts, WorkerState, WorkerStatus

CHAT = "/v1/chat/completions"
SCHEMA = {"type": "object", "properties": {"model": {}, "messages": {}, "n": {}}}
DOCUMENT = {"paths": {CHAT: {"post": {"requestBody": {"content": {"application/json": {"schema": SCHEMA}}}}}}}
OF_VLLM = {"wire": ENGINE.wire, "engine": "vllm", "request_fields": fields_of(DOCUMENT)}


class Looked(ReplicaSet):
    """Counts who looks at the facts."""

    num_looks = 0

    @property
    def facts(self) -> WorkerFacts:
        self.num_looks += 1
        return super().facts


@pytest.mark.parametrize(("facts", "n"), [({}, 1), (OF_VLLM, 1), (OF_VLLM, 3)])
async def test_the_facts_are_looked_at_once(facts: dict[str, Any], n: int) -> None:
    """Three answers of vLLM's go in portions."""
    groups: list[Looked] = []

    def replicas(upstreams: Sequence[Upstream]) -> Sequence[Looked]:
        groups.append(Looked(upstreams))
        return groups

    known = WorkerFacts("chat", ("m",), UnixAddress(Path("/nowhere/w.sock")), "k", 8, 512, **facts)
    status = WorkerStatus(known, WorkerState.READY)
    app = build_gateway(GatewaySettings(resume_wait_s=0), [status], shared=Shared(replicas))
    body = {"model": "m", "messages": [{"role": "user", "content": "x"}], "n": n}
    reply = await GatewayAsService(app, groups, 1000).ask(CHAT, json.dumps(body).encode(), "")
    assert (reply.status, b"can't be reached" in reply.body) == (503, True), "it went all the way"
    assert groups[0].num_looks == 1
