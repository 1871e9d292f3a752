"""The routes of models that are loaded on demand: who may change what is in memory."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.types import Scope

from qserve.gateway.auth import AdminKeys
from qserve.gateway.bodies import Bodies
from qserve.gateway.key_throttle import KeyThrottle
from qserve.gateway.relay.replica_set import ReplicaSet
from qserve.gateway.relay.upstream import Upstream
from qserve.gateway.residency import ResidencyEndpoints
from qserve.gateway.settings import GatewaySettings
from qserve.wire.errors import ApiError
from qserve.worker.base import TcpAddress, WorkerFacts, WorkerState, WorkerStatus

ADMIN = "an-admin-key"


def endpoints(*admin_keys: str, needs_key: bool, called: list[tuple[str, str]] | None = None) -> ResidencyEndpoints:
    facts = WorkerFacts("small", ("org/Small", "s"), TcpAddress("10.0.0.1", 1), "key", 1, 512, loads_on_demand=True)
    status = WorkerStatus(facts, WorkerState.READY, "")
    groups = [ReplicaSet([Upstream(status, GatewaySettings())])]

    async def control(action: str, group: str) -> Any:
        assert called is not None
        called.append((action, group))
        return {"state": "starting"}

    keys = AdminKeys(admin_keys, KeyThrottle())
    return ResidencyEndpoints(
        groups, keys, control if called is not None else None, Bodies(GatewaySettings()), needs_key=needs_key
    )


def scope(*headers: tuple[str, str], model: str = "org/Small") -> Scope:
    encoded = [(name.encode(), value.encode()) for name, value in headers]
    return {"type": "http", "headers": encoded, "client": ("127.0.0.1", 1), "path_params": {"model": model}}


async def sent(one: ResidencyEndpoints, action: str, about: Scope) -> int:
    messages: list[Any] = []

    async def send(message: Any) -> None:
        messages.append(message)

    await one.of(action)(about, None, send)  # type: ignore[arg-type]
    return int(messages[0]["status"])


async def test_a_name_of_the_model_says_which(called: list[tuple[str, str]]) -> None:
    one = endpoints(needs_key=False, called=called)
    assert await sent(one, "load", scope(model="s")) == 200
    assert await sent(one, "unload", scope()) == 200
    assert called == [("load", "small"), ("unload", "small")]
    with pytest.raises(ApiError) as refused:
        await sent(one, "load", scope(model="other"))
    assert refused.value.status == 404


@pytest.mark.parametrize("header", [("origin", "http://127.0.0.1:8000"), ("sec-fetch-site", "cross-site")])
async def test_a_page_in_a_browser_may_not(header: tuple[str, str], called: list[tuple[str, str]]) -> None:
    with pytest.raises(ApiError) as refused:
        await sent(endpoints(needs_key=False, called=called), "unload", scope(header))
    assert (refused.value.status, refused.value.code) == (403, "not_admin") and not called


@pytest.mark.parametrize(("keys", "needs_key"), [((), True), ((ADMIN,), True), ((ADMIN,), False)])
async def test_where_there_are_keys_an_administrator_must(
    keys: tuple[str, ...], needs_key: bool, called: list[tuple[str, str]]
) -> None:
    one = endpoints(*keys, needs_key=needs_key, called=called)
    with pytest.raises(ApiError) as refused:
        await sent(one, "pin", scope(("authorization", "Bearer another-key")))
    assert refused.value.status == 403 and not called
    if keys:
        assert await sent(one, "pin", scope(("authorization", f"Bearer {ADMIN}"))) == 200


async def test_models_that_are_always_there_say_so() -> None:
    one = endpoints(needs_key=False)
    with pytest.raises(ApiError, match="always in memory; a service whose models take turns is started with a file"):
        await sent(one, "unload", scope())


@pytest.fixture
def called() -> list[tuple[str, str]]:
    return []
