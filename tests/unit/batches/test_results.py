"""Answers survive whoever writes them: half a record is cut off, a whole one is never asked again."""

from __future__ import annotations

import json
import os

import pytest

from qserve.batches.batches import BatchStore
from qserve.batches.bounds import FileBounds
from qserve.batches.files import FileStore, Page
from qserve.batches.results import Results
from qserve.wire.errors import ApiError


@pytest.fixture
def files(tmp_path):
    return FileStore(tmp_path / "files", FileBounds(max_total_bytes=40_000, max_files_of_key=6, max_files=8))


def uploaded(files, owner="me", content=b"{}\n"):
    part = files.begin(owner, len(content))
    part.sink.write(content)
    part.finish(len(content))
    return files.add(part.path, owner, "questions.jsonl", "batch", None)


def begun(files, owner="me"):
    batches = BatchStore(files)
    window = ("24h", 24 * 3600)
    return batches, batches.create(owner, "/v1/completions", uploaded(files, owner).id, window, ["m"], None, None)


def records(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_record_that_was_cut_off_is_asked_again(files):
    _, batch = begun(files)
    first = Results(files, batch)
    first.open()
    first.add("a", 200, "req-1", b'{"choices": []}')
    first.add("b", 400, "req-2", b'{"error": {}}')
    first.close()
    part = files.part_path(f"{batch.id}.output")
    with part.open("ab") as file:
        file.write(b'{"id": "batch_req_1", "custom_id": "c", "resp')
    again = Results(files, batch)
    again.open()
    assert again.answered == {"a", "b"} and (again.num_completed, again.num_failed) == (1, 1)
    again.add("c", 200, "req-3", b'{\n "choices": []\n}')
    assert again.finish() == {
        file_id: files.path(file_id).stat().st_size for file_id in (batch.output_file_id, batch.error_file_id)
    }
    assert [one["custom_id"] for one in records(files.path(batch.output_file_id))] == ["a", "c"]
    (failed,) = records(files.path(batch.error_file_id))
    assert failed["response"] == {"status_code": 400, "request_id": "req-2", "body": {"error": {}}}


def test_killed_while_the_results_become_files(files):
    """Between the rename and the row that tells of it."""
    batches, batch = begun(files)
    results = Results(files, batch)
    results.open()
    results.add("a", 200, "req-1", b"{}")
    results.finish()
    again = Results(files, batch)
    again.open()
    assert again.answered == {"a"}
    ended = batches.finish(batch.id, "completed", (1, 0), again.finish())
    assert ended.document()["output_file_id"] == batch.output_file_id and ended.document()["error_file_id"] is None
    assert files.get(batch.output_file_id, "me").filename == f"{batch.id}_output.jsonl"


def test_one_process_runs_a_batch(files):
    batches, batch = begun(files)
    other = BatchStore(FileStore(files.folder, files.bounds))
    with batches.claimed(batch.id) as first:
        with other.claimed(batch.id) as second:
            assert (first, second) == (True, False)
        batches.finish(batch.id, "completed", (0, 0), {})
    with other.claimed(batch.id) as after:
        assert not after, "it has ended"


def test_a_batch_that_has_ended_stays_as_it_is(files):
    batches, batch = begun(files)
    assert batches.cancel(batch.id, "me").status == "cancelling"
    assert batches.move(batch.id, "in_progress").status == "cancelling"
    assert batches.finish(batch.id, "completed", (0, 0), {}).status == "cancelled"
    assert batches.move(batch.id, "in_progress").status == "cancelled"
    with pytest.raises(ApiError, match="is cancelled already"):
        batches.cancel(batch.id, "me")


def test_a_file_that_is_read_is_not_deleted(files):
    batches, batch = begun(files)
    with pytest.raises(ApiError, match="cancel it first") as refused:
        files.delete(batch.input_file_id, "me")
    assert refused.value.status == 409
    batches.finish(batch.id, "failed", (0, 0), {})
    files.delete(batch.input_file_id, "me")
    assert not files.path(batch.input_file_id).exists()


def test_others_see_nothing(files):
    batches, batch = begun(files, "me")
    for ask in (files.get, files.delete):
        with pytest.raises(ApiError, match="there is no file"):
            ask(batch.input_file_id, "you")
    for ask in (batches.get, batches.cancel):
        with pytest.raises(ApiError, match="there is no batch"):
            ask(batch.id, "you")
    assert files.listed("you", Page(10)) == batches.listed("you", Page(10)) == ([], False)
    with pytest.raises(ApiError, match="there is no file"):
        batches.create("you", "/v1/completions", batch.input_file_id, ("1h", 3600), [], None, None)


def test_pages(files):
    ids = [uploaded(files).id for _ in range(5)]
    newest, has_more = files.listed("me", Page(2))
    assert [file.id for file in newest] == ids[:2:-1] and has_more
    rest, has_more = files.listed("me", Page(10, after=ids[3]))
    assert [file.id for file in rest] == ids[2::-1] and not has_more
    assert [file.id for file in files.listed("me", Page(2, order="asc"))[0]] == ids[:2]
    with pytest.raises(ApiError, match="'after'"):
        files.listed("you", Page(2, after=ids[0]))


def test_space_and_age_are_bounded(files):
    old = uploaded(files, content=b"x" * 30_000)
    with pytest.raises(ApiError, match="--keep-files-gib"):
        files.begin("me", 30_000)
    files.database.ask("UPDATE file SET expires_at = 1")
    batches, batch = begun(files)
    files.database.ask("UPDATE file SET expires_at = 1")
    abandoned = files.part_path("0123")
    abandoned.write_bytes(b"x")
    os.utime(abandoned, (1, 1))
    files.sweep()
    assert not files.path(old.id).exists() and not abandoned.exists()
    assert files.path(batch.input_file_id).exists(), "a batch reads it"
    batches.finish(batch.id, "completed", (0, 0), {})
    files.sweep()
    assert not files.path(batch.input_file_id).exists()
    files.database.ask("UPDATE batch SET expires_at = 1, created_at = 1")
    files.sweep()
    assert batches.listed("me", Page(10)) == ([], False)


def test_nobody_else_can_read(files):
    file = uploaded(files)
    assert files.path(file.id).stat().st_mode & 0o077 == 0
    assert files.folder.stat().st_mode & 0o077 == 0 and files.database.path.stat().st_mode & 0o077 == 0


def test_too_many_batches_of_one_key(tmp_path):
    files = FileStore(tmp_path, FileBounds(max_unfinished=1))
    batches, batch = begun(files)
    with pytest.raises(ApiError, match="have not ended") as refused:
        begun(files)
    assert refused.value.status == 429
    begun(files, "you")
    batches.finish(batch.id, "completed", (0, 0), {})
    begun(files)
