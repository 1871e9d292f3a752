"""The bounds on files hold while they are written, by clients and by batches alike."""

from __future__ import annotations

import asyncio
import json
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest

from qserve.batches.batches import BatchStore
from qserve.batches.bounds import FileBounds
from qserve.batches.files import FileStore
from qserve.batches.run import BatchRun, LineReply
from qserve.wire.errors import ApiError

BLOCK = 4096
BOUNDS = FileBounds(max_total_bytes=20 * BLOCK, max_files_of_key=8, max_files=12)


@pytest.fixture
def files(tmp_path):
    return FileStore(tmp_path / "files", BOUNDS)


def held(files):
    blocks = 0
    for path in (*(files.folder / "content").iterdir(), *(files.folder / "incoming").iterdir()):
        with suppress(FileNotFoundError):  # another thread has just discarded it, or made it a file
            blocks += -(-path.stat().st_size // BLOCK)
    return blocks * BLOCK


def uploaded(files, owner="me", num_bytes=1):
    part = files.begin(owner, num_bytes)
    part.sink.write(b"x" * num_bytes)
    part.finish(num_bytes)
    return files.add(part.path, owner, "a.jsonl", "batch", None)


def test_what_is_declared_is_reserved_and_given_back(files):
    part = files.begin("me", 20 * BLOCK)
    with pytest.raises(ApiError, match="--keep-files-gib") as refused:
        files.begin("you", 1)
    assert (refused.value.status, refused.value.code) == (400, "storage_full")
    part.sink.write(b"x")
    part.finish(1)
    file = files.add(part.path, "me", "a.jsonl", "batch", None)
    assert file.num_bytes == files.path(file.id).stat().st_size == 1
    assert held(files) == BLOCK
    files.begin("you", 19 * BLOCK).discard()
    assert held(files) == BLOCK


@pytest.mark.parametrize("num_bytes", [0, 1, BLOCK])
def test_a_small_file_takes_a_block(tmp_path, num_bytes):
    files = FileStore(tmp_path / "files", FileBounds(max_total_bytes=3 * BLOCK, max_files_of_key=8, max_files=12))
    for _ in range(3):
        uploaded(files, num_bytes=num_bytes)
    with pytest.raises(ApiError, match="--keep-files-gib"):
        uploaded(files, num_bytes=num_bytes)


def test_several_at_once_of_unknown_length_stay_within_the_bound(files):
    def upload(number):
        part = None
        try:
            part = FileStore(files.folder, BOUNDS).begin(f"key {number}", 0)  # as in a process of its own
            for blocks in range(1, 6):
                part.reserve(blocks * BLOCK)
                part.sink.write(b"x" * BLOCK)
                assert held(files) <= BOUNDS.max_total_bytes
        except ApiError as error:
            if part is not None:
                part.discard()
            return error.code
        part.finish(5 * BLOCK)
        files.add(part.path, f"key {number}", "a.jsonl", "batch", None)
        return "kept"

    with ThreadPoolExecutor(8) as pool:
        ends = list(pool.map(upload, range(8)))
    assert set(ends) == {"kept", "storage_full"}
    assert held(files) == ends.count("kept") * 5 * BLOCK


def test_files_are_counted_by_key_and_in_all(files):
    kept = [uploaded(files) for _ in range(8)]
    with pytest.raises(ApiError, match="this key has 8 files, and the limit is 8") as refused:
        files.begin("me", 1)
    assert (refused.value.status, refused.value.code) == (400, "too_many_files")
    for number in range(4):
        uploaded(files, f"other {number}")
    with pytest.raises(ApiError, match="all keys together have 12 files"):
        files.begin("another", 1)
    files.delete(kept[0].id, "me")
    uploaded(files)


def test_uploads_that_begin_together_are_counted_when_they_end(files):
    parts = [files.begin("me", 1) for _ in range(10)]
    ends = []
    for part in parts:
        part.finish(1)
        try:
            ends.append(files.add(part.path, "me", "a.jsonl", "batch", None).filename)
        except ApiError as error:
            ends.append(error.code)
            part.discard()
    assert ends == ["a.jsonl"] * 8 + ["too_many_files"] * 2
    assert held(files) == 8 * BLOCK


def test_a_thousand_files_of_a_key_are_enough_for_anybody():
    assert FileBounds().max_files_of_key <= 1000 < FileBounds().max_files


class Answering:
    """Answers each line with four blocks."""

    max_body_bytes = 1 << 20

    def __init__(self):
        self.num_asked = self.num_running = 0

    def models(self):
        return ("m",)

    def refusal(self, endpoint, model):
        return None

    def free_slots(self, endpoint, model, owner):
        return 1 - self.num_running

    async def ask(self, endpoint, body, owner):
        self.num_asked, self.num_running = self.num_asked + 1, 1
        await asyncio.sleep(0.05)
        self.num_running = 0
        return LineReply(200, "r", json.dumps({"text": "x" * 4 * BLOCK}).encode())


async def test_a_batch_waits_for_space_and_goes_on(files, monkeypatch):
    monkeypatch.setattr("qserve.batches.run._COUNT_S", 0.01)
    lines = b"".join(b'{"custom_id": "%d", "body": {}}\n' % number for number in range(6))
    part = files.begin("me", len(lines))
    part.sink.write(lines)
    part.finish(len(lines))
    questions = files.add(part.path, "me", "q.jsonl", "batch", None)
    other = uploaded(files, "me", 10 * BLOCK)
    batches = BatchStore(files)
    batch = batches.create("me", "/v1/completions", questions.id, ("24h", 24 * 3600), ["m"], None, None)
    batch = batches.move(batch.id, "in_progress", model="m", num_total=6)
    service = Answering()
    running = asyncio.create_task(BatchRun(batches, service, batch).run())
    while not files.space.is_full():
        assert not running.done(), running.result()
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.2)
    waiting = service.num_asked
    await asyncio.sleep(0.3)
    assert waiting == service.num_asked < 6, "it asks for what it can't keep"
    files.bounds = files.space._bounds = FileBounds()
    files.delete(other.id, "me")
    ended = await asyncio.wait_for(running, 60)
    assert (ended.status, ended.num_completed, service.num_asked) == ("completed", 6, 6)
