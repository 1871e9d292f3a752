"""A real Ray cluster of two nodes on this machine: placement, a load that wants another replica, a lost node, faults.

One cluster and one service for all: a node takes seconds and 400 MB. `python bench/ray_scale.py` does the same with
three nodes and 64 streams.
"""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from bench.ray_nodes import RayNode, RayNodes, ray_nodes
from tests.tiny.serving.served import Service

pytestmark = pytest.mark.timeout(600)  # a cluster on a machine that is busy
LIMIT_S = 120.0
QUESTIONS = [f"What is {at}+{at + 1}?" for at in range(6)]


@pytest.fixture(scope="module")
def nodes() -> Iterator[RayNodes]:
    with ray_nodes() as cluster:
        yield cluster


@pytest.fixture(scope="module")
def other(nodes: RayNodes) -> RayNode:
    return nodes.add()


@pytest.fixture(scope="module")
def service(nodes: RayNodes, other: RayNode, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    arguments = (
        "--model",
        "demo",
        "--dtype",
        "float32",
        "--ray",
        nodes.address,
        "--max-replicas",
        "2",
        "--scale-down-after",
        "8",
        "--max-num-seqs",
        "2",
        "--no-ui",
    )
    one = Service(arguments, tmp_path_factory.mktemp("ray"))
    try:
        yield one.until_ready()
    finally:
        one.end_as_told()


def states(service: Service) -> list[str]:
    return [worker["state"] for worker in httpx.get(f"{service.url}/ready", timeout=30).json()["workers"]]


def workers(nodes: RayNodes) -> list[psutil.Process]:
    return [worker for node in nodes.nodes for worker in node.workers()]


async def until(holds: Callable[[], bool], what: str, limit_s: float = LIMIT_S) -> None:
    deadline_s = time.monotonic() + limit_s
    while not holds():
        assert time.monotonic() < deadline_s, what
        await asyncio.sleep(0.1)


async def stream(client: httpx.AsyncClient, question: str, begun: asyncio.Semaphore) -> tuple[str, str]:
    """The words of a stream, and the code of the error that it ended with."""
    words, error = "", ""
    body = {
        "model": "demo",
        "messages": [{"role": "user", "content": question}],
        "temperature": 0,
        "max_tokens": 400,
        "ignore_eos": True,
        "stream": True,
    }
    async with client.stream("POST", "/v1/chat/completions", json=body) as response:
        assert response.status_code == 200, await response.aread()
        async for line in response.aiter_lines():
            if line.startswith("data: {"):
                event = json.loads(line.removeprefix("data: "))
                error = event["error"]["code"] if "error" in event else error
                had, words = (
                    words,
                    words + "".join(one["delta"].get("content") or "" for one in event.get("choices", ())),
                )
                if words and not had:
                    begun.release()
    return words, error


async def test_a_load_brings_a_replica_and_a_lost_node_takes_only_its_own(nodes: RayNodes, service: Service) -> None:
    """One by one: a load starts the second replica on the other node, the node goes, another one takes its replica."""
    await until(lambda: states(service) == ["ready", "idle"], "one of two is wanted")
    async with httpx.AsyncClient(base_url=service.url, timeout=LIMIT_S) as client:
        whole: dict[str, str] = {}
        while states(service)[1] == "idle":
            ends = await asyncio.gather(*(stream(client, one, asyncio.Semaphore(0)) for one in QUESTIONS))
            whole = {question: words for question, (words, _) in zip(QUESTIONS, ends, strict=True)}
        await until(lambda: states(service) == ["ready", "ready"], "the second replica")
        assert len(nodes.head.workers()) == 1
        lost = next(node for node in nodes.nodes if node is not nodes.head and node.workers())

        begun = asyncio.Semaphore(0)
        streams = {one: asyncio.create_task(stream(client, one, begun)) for one in QUESTIONS}
        for _ in range(2):
            await begun.acquire()
        gone = lost.kill()
        nodes.add()  # in this thread, with which it ends
        for question, task in streams.items():
            assert await task == (whole[question], ""), "it went on elsewhere"
        await until(lambda: states(service) == ["ready", "ready"] and len(workers(nodes)) == 2, "a replacement")
        _, alive = psutil.wait_procs(gone, timeout=LIMIT_S)
        assert not alive, "what ran on the lost node ends by itself"

        await until(lambda: states(service) == ["ready", "idle"], "one replica is enough")
        await until(lambda: len(workers(nodes)) == 1, "the other one is ended")
        assert (await stream(client, QUESTIONS[0], asyncio.Semaphore(0)))[0] == whole[QUESTIONS[0]]


def refused(*arguments: str, before: str = "") -> str:
    """What `qserve up` says, in one line, when it ends at once."""
    run = f"{before}\nfrom qserve.cli.main import main\nmain()"
    command = [sys.executable, "-c", run, "up", "--model", "demo", "--no-ui", "--port", "0", *arguments]
    result = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S)
    assert result.returncode in (2, 3, 5), result.stderr
    assert "Traceback" not in result.stderr
    return " ".join(result.stderr.split())


def test_what_the_cluster_can_not_do_is_one_sentence(nodes: RayNodes, service: Service, tmp_path: Path) -> None:
    state = ("--ray", nodes.address, "--state-dir", str(tmp_path))
    with socket.socket() as held:
        held.bind(("0.0.0.0", 0))
        held.listen()
        port = held.getsockname()[1]
        said = refused(*state, "--ray-ports", f"{port}-{port}")
    assert f"none of the ports {port}-{port} can be opened on" in said
    said = refused(*state, before="import ray; ray.__version__ = '2.59.1'")
    assert "the cluster runs another version: The cluster was started with: Ray: 2.60.0" in said
    assert "Ray: 2.59.1" in said
