"""Batches of several keys at one service share its slots, whoever has more batches and whoever came first."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from qserve.batches import BatchRunner, FileBounds, FileStore
from qserve.batches.records import StoredBatch
from qserve.batches.run import LineReply
from qserve.gateway.relay.admission import Admission

_DAY_S = 24 * 3600


class Asked:
    """A service of a few slots, each line of which takes a moment; who was answered, in order."""

    max_body_bytes = 1 << 20

    def __init__(self, *, shares_places: bool) -> None:
        self.admission = Admission(5, max_waiting=100, shares_places=shares_places)
        self.answered: list[str] = []
        self.most_waiting = 0

    def models(self) -> tuple[str, ...]:
        return ("m",)

    def refusal(self, endpoint: str, model: str) -> str | None:
        return None

    def free_slots(self, endpoint: str, model: str, owner: str) -> int:
        return self.admission.free_in_background(owner)

    async def ask(self, endpoint: str, body: bytes, owner: str) -> LineReply:
        async with self.admission.slots(1, background=True, client=owner):
            self.most_waiting = max(self.most_waiting, self.admission.num_waiting)
            await asyncio.sleep(0.01)
        self.answered.append(owner)
        return LineReply(200, "r", b"{}")


@pytest.fixture
def files(tmp_path: Path) -> FileStore:
    return FileStore(tmp_path / "files", FileBounds())


def _batch(runner: BatchRunner, owner: str, num_lines: int) -> StoredBatch:
    """One whose lines were looked at."""
    files, store = runner.store.files, runner.store
    lines = [
        {"custom_id": str(number), "method": "POST", "url": "/v1/completions", "body": {"model": "m", "prompt": "x"}}
        for number in range(num_lines)
    ]
    content = "".join(json.dumps(line) + "\n" for line in lines).encode()
    part = files.begin(owner, len(content))
    part.sink.write(content)
    part.finish(len(content))
    file = files.add(part.path, owner, "lines.jsonl", "batch", None)
    batch = store.create(owner, "/v1/completions", file.id, ("24h", _DAY_S), ["m"], None, None)
    return store.move(batch.id, "in_progress", model="m", num_total=num_lines)


async def _ended(runner: BatchRunner, batch: StoredBatch) -> StoredBatch:
    async with asyncio.timeout(60):
        while not (now := runner.store.get(batch.id)).has_ended:
            await asyncio.sleep(0.05)
    return now


@contextlib.asynccontextmanager
async def _runs(runner: BatchRunner) -> AsyncIterator[None]:
    running = asyncio.create_task(runner.run())
    try:
        yield
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


@pytest.mark.parametrize("shares_places", [False, True])
async def test_a_new_batch_does_not_wait_for_eight_of_another_key(files: FileStore, shares_places: bool) -> None:
    service = Asked(shares_places=shares_places)
    runner = BatchRunner(files, service)
    for _ in range(8):
        _batch(runner, "a", 2000)
    async with _runs(runner):
        async with asyncio.timeout(60):
            while len(service.answered) < 40:
                await asyncio.sleep(0.01)
        assert len(runner._running) == 4, "the others would only share its slots"
        before = len(service.answered)
        new = _batch(runner, "b", 40)
        runner.wake()
        assert (await _ended(runner, new)).num_completed == 40
        of_b = [index for index, owner in enumerate(service.answered) if owner == "b"]
        shares = Counter(service.answered[of_b[0] : of_b[-1] + 1])
        assert len(of_b) == 40 and shares["a"] < 3 * shares["b"], (before, shares)
    assert service.most_waiting <= 4 + 1, "lines wait in their file, not in the queue"


async def test_one_that_is_cancelled_ends_though_its_key_has_as_many_as_may_run(files: FileStore) -> None:
    runner = BatchRunner(files, Asked(shares_places=False))
    batches = [_batch(runner, "a", 5000) for _ in range(6)]
    async with _runs(runner):
        async with asyncio.timeout(60):
            while len(runner._running) < 4:
                await asyncio.sleep(0.01)
        runner.store.cancel(batches[-1].id, "a")
        runner.wake()
        assert (await _ended(runner, batches[-1])).status == "cancelled"
