"""Adapters of all replicas, told to real HTTP workers: one for all or none, copies, restarts, and refusals."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from qserve.core.model_spec import ModelSpec
from qserve.errors import WorkerFailed
from qserve.hub.folder import read_config
from qserve.hub.resolve import resolve
from qserve.planner import Plan, PlanRequest, make_plan
from qserve.service.machine import hardware_of
from qserve.supervisor.adapters.shelf import AdapterShelf
from qserve.supervisor.deployment import ModelDeployment
from qserve.supervisor.worker import SupervisedWorker
from qserve.wire.errors import ApiError
from qserve.worker.base import UnixAddress, WorkerFacts, WorkerState, WorkerStatus
from tests.unit.peft_folder import pair, write_folder

BASE = resolve("demo").folder
assert BASE is not None
SPEC = ModelSpec.from_config(read_config(BASE), "demo")
SHAPES = pair("model.layers.0.self_attn.q_proj", SPEC.hidden_size, SPEC.num_attention_heads * SPEC.head_dim)


class Engine:
    """A server with vLLM's two routes; it reads the folder as an engine would."""

    def __init__(self) -> None:
        self.has: dict[str, bytes] = {}
        self.refuses = ""

    async def load(self, request: Request) -> Response:
        asked = await request.json()
        if self.refuses:
            return JSONResponse({"error": {"message": self.refuses}}, 500)
        self.has[asked["lora_name"]] = (Path(asked["lora_path"]) / "adapter_config.json").read_bytes()
        return JSONResponse({})

    async def unload(self, request: Request) -> Response:
        found = self.has.pop((await request.json())["lora_name"], None)
        return JSONResponse({}, 200 if found else 404)

    @asynccontextmanager
    async def served(self, socket: Path) -> AsyncIterator[None]:
        routes = [
            Route("/v1/load_lora_adapter", self.load, methods=["POST"]),
            Route("/v1/unload_lora_adapter", self.unload, methods=["POST"]),
        ]
        server = uvicorn.Server(uvicorn.Config(Starlette(routes=routes), uds=str(socket), log_level="error"))
        serving = asyncio.create_task(server.serve())
        while not server.started:
            await asyncio.sleep(0.01)
        yield
        server.should_exit = True
        await serving


@pytest.fixture(scope="module")
def plan() -> Plan:
    return make_plan(resolve("demo"), hardware_of("none"), PlanRequest())


class Service:
    """Two replicas of one model, and a reward model without room for adapters."""

    def __init__(self, folder: Path, plan: Plan) -> None:
        assert BASE is not None
        self.folder = folder
        self.engines = (Engine(), Engine())
        chat = ModelDeployment("chat", BASE, ("demo",), plan, num_replicas=2)
        self.deployments = [chat, replace(chat, index=1), ModelDeployment("reward", BASE, ("judge",), plan)]
        self.events: list[str] = []
        self.workers = [self._worker(one) for one in self.deployments]
        self.shelf = self.opened()

    def opened(self) -> AdapterShelf:
        return AdapterShelf(self.deployments, self.workers, self.folder / "adapters", self._report)

    def _worker(self, one: ModelDeployment) -> SupervisedWorker:
        room = {"max_loras": 2, "max_lora_rank": 8} if one.role == "chat" else {}
        address = UnixAddress(self.folder / f"{one.name}.sock")
        facts = WorkerFacts(one.name, one.names, address, "key", 1, 16, role=one.role, group=one.group, **room)
        status = WorkerStatus(facts, WorkerState.READY)
        return SupervisedWorker(status, None, self.folder / "log", lambda *_: None)  # type: ignore[arg-type]

    def _report(self, worker: str, event: str, **details: Any) -> None:
        self.events.append(event)

    @property
    def has(self) -> list[list[str]]:
        return [sorted(one.has) for one in self.engines]

    @property
    def names(self) -> list[tuple[str, ...]]:
        return [worker.status.facts.names for worker in self.workers[:2]]


@pytest.fixture
async def service(tmp_path: Path, plan: Plan) -> AsyncIterator[Service]:
    one = Service(tmp_path, plan)
    async with AsyncExitStack() as stack:
        for index, engine in enumerate(one.engines):
            await stack.enter_async_context(engine.served(tmp_path / f"chat-{index}.sock"))
        yield one
        for worker in one.workers:
            await worker.stop()


def _adapter(folder: Path, **config: Any) -> str:
    return str(write_folder(folder, SHAPES, **config))


async def _refused(work: Any) -> ApiError:
    with pytest.raises(ApiError) as refused:
        await work
    return refused.value


async def test_a_name_is_a_model_of_every_replica_until_it_is_unloaded(service: Service, tmp_path: Path) -> None:
    path = _adapter(tmp_path / "sql")
    loaded = await service.shelf.load("sql", path, None, False)
    assert (loaded["model"], loaded["path"], loaded["rank"], loaded["num_loads"]) == ("demo", path, 4, 1)
    assert service.has == [["sql"], ["sql"]] and service.names == [("demo", "sql")] * 2
    listed = await service.shelf.listed()
    assert [one["id"] for one in listed["data"]] == ["sql"]
    room = {"model": "demo", "max_loras": 2, "max_lora_rank": 8, "loaded": ["sql"], "at_start": []}
    assert listed["room"] == [room]
    await service.shelf.unload("sql")
    assert service.has == [[], []] and service.names == [("demo",)] * 2
    assert not list((tmp_path / "adapters").glob("copy-*"))
    assert (await _refused(service.shelf.unload("sql"))).status == 404
    assert service.events == ["adapter_loaded", "adapter_unloaded"]


async def test_where_one_replica_refuses_none_has_it(service: Service, tmp_path: Path) -> None:
    first, second = _adapter(tmp_path / "first"), _adapter(tmp_path / "second", lora_alpha=99)
    service.engines[1].refuses = "no such layer"
    error = await _refused(service.shelf.load("sql", first, None, False))
    assert error.status == 400 and "no such layer" in error.message and "loaded nowhere" in error.message
    assert service.has == [[], []] and service.names == [("demo",)] * 2
    service.engines[1].refuses = ""
    await service.shelf.load("sql", first, None, False)
    was = service.engines[0].has["sql"]
    service.engines[1].refuses = "a broken file"
    error = await _refused(service.shelf.load("sql", second, None, True))
    assert "loaded before stays" in error.message
    assert [one.has["sql"] for one in service.engines] == [was, was]
    service.workers[0].status.facts = replace(
        service.workers[0].status.facts, address=UnixAddress(tmp_path / "nobody.sock")
    )
    assert (await _refused(service.shelf.load("other", first, None, False))).status == 502


async def test_a_start_brings_back_what_was_loaded_not_what_the_trainer_wrote_since(
    service: Service, tmp_path: Path
) -> None:
    path, worker = _adapter(tmp_path / "sql"), service.workers[1]
    await service.shelf.load("sql", path, None, False)
    was = service.engines[0].has["sql"]
    write_folder(Path(path), SHAPES, lora_alpha=1)
    worker.status.state = WorkerState.RESTARTING
    service.engines[1].has.clear()
    await service.shelf.load("math", path, None, False)  # told to those that run alone
    assert service.has == [["math", "sql"], []]
    async with worker.adapters.brought_back(replace(worker.status.facts, adapters=())) as facts:
        assert facts.names == ("demo", "sql", "math")
        worker.status.state = WorkerState.READY
    assert service.has == [["math", "sql"]] * 2 and service.engines[1].has["sql"] == was
    service.engines[1].refuses = "no memory"
    with pytest.raises(WorkerFailed, match="'sql' could not be loaded again: chat-1: no memory"):
        async with worker.adapters.brought_back(facts):
            pass


async def test_a_service_that_takes_over_knows_what_is_loaded(service: Service, tmp_path: Path) -> None:
    await service.shelf.load("sql", _adapter(tmp_path / "sql"), None, False)
    for worker in service.workers:
        worker.adapters.wanted.clear()
    taking = service.opened()
    found = service.workers[0].adapters.found(replace(service.workers[0].status.facts, adapters=("given", "sql")))
    assert found.names == ("demo", "given", "sql")
    assert [one["id"] for one in (await taking.listed())["data"]] == ["sql"]
    assert (await _refused(taking.unload("given"))).code == "given_at_start"
    await taking.unload("sql")
    assert service.has == [[], []]


async def test_what_can_not_be_loaded_says_why_and_what_helps(service: Service, tmp_path: Path) -> None:
    path = _adapter(tmp_path / "sql")
    load = service.shelf.load
    for name in ("demo", "judge"):
        assert (await _refused(load(name, path, None, False))).code == "name_taken"
    assert (await _refused(load("sql", path, "nobody", False))).status == 404
    assert (await _refused(load("sql", path, "judge", False))).status == 503
    service.workers[2].status.start_phases_s = {"ready": 1.0}
    error = await _refused(load("sql", path, "judge", False))
    assert error.status == 409 and "--enable-lora" in error.message
    error = await _refused(load("sql", str(tmp_path), None, False))
    assert error.status == 404 and "no adapter_config.json" in error.message
    assert (await _refused(load("sql", "/" + "a" * 5000, None, False))).status == 404
    big = write_folder(tmp_path / "big", {name: _wider(name, shape) for name, shape in SHAPES.items()}, r=16)
    error = await _refused(load("sql", str(big), None, False))
    assert "room for rank 8; serve with --max-lora-rank 16" in error.message
    await load("sql", path, None, False)
    assert (await _refused(load("sql", path, None, False))).code == "name_taken"
    await load("math", path, "demo", False)
    error = await _refused(load("third", path, None, False))
    assert error.status == 409 and "serve with --max-loras 3" in error.message
    assert (await load("math", path, None, True))["num_loads"] == 2  # needs no further room


def _wider(name: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    return (16, shape[1]) if "lora_A" in name else (shape[0], 16)


async def test_copies_hold_the_files_that_are_read_and_no_others(service: Service, tmp_path: Path) -> None:
    path = Path(_adapter(tmp_path / "sql"))
    (path / "optimizer.pt").write_bytes(b"large")
    for _ in range(3):
        await service.shelf.load("sql", str(path), None, True)
    copies = list((tmp_path / "adapters").glob("copy-*"))
    assert [sorted(file.name for file in one.iterdir()) for one in copies] == [
        ["adapter_config.json", "adapter_model.safetensors"]
    ]
    assert [one["num_loads"] for one in json.loads((tmp_path / "adapters/index.json").read_text())] == [3]
