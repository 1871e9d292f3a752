"""The routes of adapters: who may use them, and what a body may hold."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from qserve.gateway.app import build_gateway
from qserve.gateway.keys.editing import add_key, new_key
from qserve.gateway.keys.entries import KeyEntry
from qserve.gateway.settings import GatewaySettings
from qserve.worker.base import UnixAddress, WorkerFacts, WorkerState, WorkerStatus

PATH = "/v1/qserve/adapters"
BODY = {"name": "sql", "path": "/adapters/sql"}


class Control:
    """Writes down what it is told."""

    def __init__(self) -> None:
        self.told: list[Any] = []

    async def listed(self) -> dict[str, Any]:
        return {"object": "list", "data": [], "room": []}

    async def load(self, name: str, path: str, model: str | None, load_inplace: bool) -> dict[str, Any]:
        self.told.append((name, path, model, load_inplace))
        return {"id": name}

    async def unload(self, name: str) -> dict[str, Any]:
        self.told.append(name)
        return {"id": name, "deleted": True}


def _client(settings: GatewaySettings, control: Control | None, key: str = "") -> httpx.AsyncClient:
    facts = WorkerFacts("chat", ("demo",), UnixAddress(Path("/nowhere")), "k", 1, 16)
    app = build_gateway(settings, [WorkerStatus(facts, WorkerState.READY)], adapters=control)
    headers = {"authorization": f"Bearer {key}"} if key else {}
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://here", headers=headers)


async def test_bodies_and_names_with_slashes_arrive() -> None:
    control = Control()
    async with _client(GatewaySettings(), control) as client:
        assert (await client.get(PATH)).json()["room"] == []
        assert (await client.post(PATH, json=BODY)).status_code == 200
        assert (await client.post(PATH, json={**BODY, "model": "demo", "load_inplace": True})).status_code == 200
        assert (await client.delete(f"{PATH}/org/sql")).json() == {"id": "org/sql", "deleted": True}
    expected = [("sql", "/adapters/sql", None, False), ("sql", "/adapters/sql", "demo", True), "org/sql"]
    assert control.told == expected


@pytest.mark.parametrize(
    "body",
    [
        {"name": "sql"},
        {**BODY, "replace": True},
        {**BODY, "name": ""},
        {**BODY, "name": " sql"},
        {**BODY, "path": 3},
        {**BODY, "path": "sql"},
    ],
)
async def test_a_wrong_body_is_refused(body: dict[str, Any]) -> None:
    control = Control()
    async with _client(GatewaySettings(), control) as client:
        answer = await client.post(PATH, json=body)
    assert answer.status_code == 400 and not control.told


async def test_only_the_services_own_keys_may(tmp_path: Path) -> None:
    named, (key, digest) = tmp_path / "keys.yaml", new_key()
    add_key(named, KeyEntry("lab", digest))
    settings = GatewaySettings(keys=("own",), admin_keys=("admin",), key_file=str(named))
    for token, status in (("own", 200), ("admin", 200), (key, 403), ("wrong", 401)):
        async with _client(settings, Control(), token) as client:
            assert (await client.get(PATH)).status_code == status, token
            assert (await client.post(PATH, json=BODY)).status_code == status, token
    async with _client(GatewaySettings(key_file=str(named)), Control(), key) as client:
        answer = await client.post(PATH, json=BODY)
    assert answer.status_code == 403 and "--api-key-file" in answer.json()["error"]["message"]


async def test_without_a_supervisor_nothing_can_be_loaded() -> None:
    async with _client(GatewaySettings(), None) as client:
        assert (await client.post(PATH, json=BODY)).status_code == 501
