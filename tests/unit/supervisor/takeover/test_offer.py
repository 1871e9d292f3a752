"""The old service's side: it watches on unless the new one has come to the end."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from qserve.supervisor.takeover.handed import About, Handed
from qserve.supervisor.takeover.launched import Launched
from qserve.supervisor.takeover.messages import SOCKET, receive, send
from qserve.supervisor.takeover.offer import Offer

ABOUT = About(("127.0.0.1", 8000), "run", Launched(), {})


class Service:
    """Notes what the offer does with it."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.why_not = ""

    def about(self) -> About:
        return replace(ABOUT, why_not=self.why_not)

    def hand(self) -> tuple[Handed, list[int], list[int]]:
        sent = os.dup(0)
        return Handed(Path("/p"), ()), [0, 0, sent], [sent]

    async def pause(self) -> None:
        self.done.append("pause")

    def resume(self) -> None:
        self.done.append("resume")

    def given(self) -> None:
        self.done.append("given")

    async def watch(self) -> None:
        self.done.append("watch")
        await asyncio.Event().wait()


@asynccontextmanager
async def offered(service: Service, folder: Path) -> AsyncIterator[asyncio.Task[None]]:
    offer = Offer(service)
    async with offer.open_in(folder):
        watching = asyncio.create_task(offer.watch(service.watch))
        await asyncio.sleep(0)
        try:
            yield watching
        finally:
            watching.cancel()


def connected(folder: Path) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(30)
    connection.connect(str(folder / SOCKET))
    return connection


async def ask(connection: socket.socket, what: str) -> object:
    def exchange() -> object:
        send(connection, what)
        said, descriptors = receive(connection)
        for one in descriptors:
            os.close(one)
        return said

    return await asyncio.to_thread(exchange)


async def until(service: Service, done: list[str]) -> None:
    async with asyncio.timeout(30):
        while service.done != done:
            await asyncio.sleep(0.01)


async def test_only_its_user_can_ask(tmp_path: Path) -> None:
    async with offered(Service(), tmp_path):
        assert (tmp_path / SOCKET).stat().st_mode & 0o777 == 0o600


async def test_it_lets_go_when_it_is_told_to_leave(tmp_path: Path) -> None:
    service = Service()
    async with offered(service, tmp_path) as watching:
        with connected(tmp_path) as new:
            assert await ask(new, "about") == ABOUT.to_document()
            assert service.done == ["watch"]
            assert isinstance(await ask(new, "take"), Handed)
            assert service.done == ["watch", "pause"]
            assert await ask(new, "leave") == "left"
        await asyncio.wait_for(watching, 30)
    assert service.done == ["watch", "pause", "given"]


async def test_it_goes_on_where_the_new_one_is_gone(tmp_path: Path) -> None:
    service = Service()
    async with offered(service, tmp_path):
        with connected(tmp_path) as new:
            await ask(new, "take")
        await until(service, ["watch", "pause", "resume", "watch"])
        with connected(tmp_path) as new:  # and can be taken over from again
            assert isinstance(await ask(new, "take"), Handed)


async def test_it_goes_on_where_the_new_one_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qserve.supervisor.takeover.offer._LIMIT_S", 0.3)
    service = Service()
    async with offered(service, tmp_path):
        with connected(tmp_path) as new:
            await ask(new, "take")
            await until(service, ["watch", "pause", "resume", "watch"])
            assert new.recv(1) == b""


async def test_nobody_takes_what_another_one_takes(tmp_path: Path) -> None:
    async with offered(Service(), tmp_path):
        with connected(tmp_path) as first, connected(tmp_path) as second:
            await ask(first, "take")
            told = await ask(second, "take")
            assert isinstance(told, dict) and "another service" in told["why_not"]
            assert await ask(second, "leave") != "left"
            assert await ask(first, "leave") == "left"


async def test_what_can_not_be_taken_over_says_why_and_goes_on(tmp_path: Path) -> None:
    service = Service()
    service.why_not = "a worker restarts"
    async with offered(service, tmp_path):
        with connected(tmp_path) as new:
            told = await ask(new, "take")
            assert isinstance(told, dict) and told["why_not"] == "a worker restarts"
    assert service.done == ["watch"]


async def test_what_the_watch_raises_is_raised(tmp_path: Path) -> None:
    async def fails() -> None:
        raise ValueError("the worker is gone")

    offer = Offer(Service())
    async with offer.open_in(tmp_path):
        with pytest.raises(ValueError, match="gone"):
            await offer.watch(fails)
