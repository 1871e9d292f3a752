"""The writer: nothing is lost, nothing waits, whatever happens to the file."""

from __future__ import annotations

import logging
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from qserve.runs import RunStore, retention
from qserve.runs import writer as writing
from qserve.runs.database import FILE_NAME
from qserve.runs.retention import Retention, stored_bytes
from tests.unit.runs.kept import new_run, request, stored, until, writer


def count(folder: Path) -> int:
    return RunStore.open(folder).run().num_requests


def test_what_is_over_is_in_the_store_within_the_second_commit(tmp_path: Path) -> None:
    run = writer(tmp_path)
    run.request(request(1))
    until(lambda: (tmp_path / FILE_NAME).exists() and RunStore.open(tmp_path).runs() != () and count(tmp_path) == 1)
    assert RunStore.open(tmp_path).run().state == "running"
    run.close(3)
    assert RunStore.open(tmp_path).run().exit_status == 3


def test_two_processes_write_one_store(tmp_path: Path) -> None:
    one, other = writer(tmp_path, "a"), writer(tmp_path, "b")
    for number in range(2000):
        (one if number % 2 else other).request(request(number))
    one.close(0)
    other.close(0)
    store = RunStore.open(tmp_path)
    assert [(run.id, run.num_requests, run.num_lost) for run in sorted(store.runs(), key=lambda run: run.id)] == [
        ("a", 1000, 0),
        ("b", 1000, 0),
    ]
    assert len(store.requests(store.run("a"), limit=5000)) == 1000


def test_a_plan_that_comes_while_its_run_is_inserted_is_kept_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    insert = writing.RunWriter._insert_run

    def plan_then_insert(run: writing.RunWriter, *queued: Any) -> int:
        run.plan("chat", ("m",), {"a": 1})  # as the thread that serves may at this moment
        return insert(run, *queued)

    monkeypatch.setattr(writing.RunWriter, "_insert_run", plan_then_insert)
    writer(tmp_path, "one").close(0)
    (worker,) = RunStore.open(tmp_path).run("one").workers
    assert [plan["a"] for plan in worker.plans] == [1]


def test_a_locked_store_is_waited_for_and_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(writing, "_BUSY_S", 0.05)
    monkeypatch.setattr(writing, "_RETRY_S", 0.05)
    stored(tmp_path, 1, "before")
    holder = sqlite3.connect(tmp_path / FILE_NAME, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    run = writer(tmp_path, "after")
    run.request(request(1))
    until(lambda: "the service continues" in caplog.text)
    holder.execute("ROLLBACK")
    holder.close()
    until(lambda: RunStore.open(tmp_path).find("after") is not None)
    run.close(0)
    assert count(tmp_path) == 1
    assert caplog.text.count("the service continues") == 1, "one warning, not one a commit"
    assert "is written again" in caplog.text


def test_a_full_disk_costs_the_record_and_is_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(writing, "_RETRY_S", 0.02)
    monkeypatch.setattr(writing, "_MOST_REQUESTS", 50)
    connect = writing.connect
    is_full = True

    def bounded(path: Path, busy_s: float) -> sqlite3.Connection:
        connection = connect(path, busy_s)
        pages = connection.execute("PRAGMA page_count").fetchone()[0]
        # SQLite's own way to be full: the same SQLITE_FULL that a disk without room makes.
        connection.execute(f"PRAGMA max_page_count = {pages if is_full else 1 << 30}")
        return connection

    stored(tmp_path, 1, "before")
    monkeypatch.setattr(writing, "connect", bounded)
    run = writer(tmp_path, "after")
    for number in range(80):
        run.request(request(number))
        run.event("chat", "phase", {"name": "x" * 2000})
    until(lambda: "disk is full" in caplog.text)
    is_full = False
    until(lambda: RunStore.open(tmp_path).find("after") is not None)
    run.close(0)
    kept = RunStore.open(tmp_path).run("after")
    assert kept.num_requests == 50
    assert kept.num_lost == 30
    assert caplog.text.count("the service continues") == 1
    with sqlite3.connect(tmp_path / FILE_NAME) as file:
        assert file.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    file.close()


def test_a_store_that_breaks_while_it_is_written_is_set_aside_and_the_run_goes_on_in_a_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writing, "_RETRY_S", 0.05)
    run = writer(tmp_path)
    run.plan("chat", ("demo",), {"engine": "vllm"})
    run.request(request(1))
    until(lambda: (tmp_path / FILE_NAME).exists() and RunStore.open(tmp_path).runs() != () and count(tmp_path) == 1)
    # Its journal would mend it. One replacement, so that the writer meets the old file or the broken one.
    for end in ("-wal", "-shm"):
        (tmp_path / f"{FILE_NAME}{end}").rename(tmp_path / f"gone{end}")
    (tmp_path / "broken").write_bytes(b"no database " * 100)
    (tmp_path / "broken").replace(tmp_path / FILE_NAME)
    run.request(request(2))
    until(lambda: list(tmp_path.glob(f"{FILE_NAME}.broken-*")) != [])
    until(lambda: RunStore.open(tmp_path).runs() != ())
    run.close(0)
    kept = RunStore.open(tmp_path).run()
    assert kept.num_requests == 1
    assert kept.workers[0].plan["engine"] == "vllm", "the plan was written before the store broke, and is known"


def test_a_store_of_a_newer_qserve_stops_no_service(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    newer = sqlite3.connect(tmp_path / FILE_NAME)
    newer.executescript("CREATE TABLE run (id TEXT); PRAGMA user_version = 999;")
    newer.close()
    run = writer(tmp_path)
    run.request(request(1))
    run.close(0)
    assert "newer qserve" in caplog.text


SERVES = """
import sys, time
from pathlib import Path
from tests.unit.runs.kept import request, writer
run = writer(Path(sys.argv[1]))
number = 0
while True:
    run.request(request(number))
    number += 1
    print(number, flush=True)
    time.sleep(0.002)
"""


@pytest.mark.parametrize("seen", [0, 1, 300])
def test_a_killed_process_loses_nothing_that_was_committed(tmp_path: Path, seen: int) -> None:
    """bench/run_store.py measures, over fifty kills, that what was not committed is of the last second."""
    process = subprocess.Popen(
        [sys.executable, "-c", SERVES, str(tmp_path)], stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[3]
    )
    assert process.stdout is not None
    process.stdout.readline()
    until(lambda: committed(tmp_path) >= seen)
    before = committed(tmp_path)
    process.send_signal(signal.SIGKILL)
    finished = [line for line in process.stdout.read().split("\n") if line.isdigit()]
    process.wait()
    process.stdout.close()
    kept = committed(tmp_path)
    assert before <= kept <= int(finished[-1] if finished else 1) + 1
    for run in RunStore.open(tmp_path).runs():
        assert len(RunStore.open(tmp_path).requests(run, limit=10**6)) == kept, "rows and count are of one commit"
        assert run.state == "died"


def committed(folder: Path) -> int:
    if not (folder / FILE_NAME).exists():
        return 0
    runs = RunStore.open(folder).runs()
    return runs[0].num_requests if runs else 0


def test_old_runs_go_with_their_logs(tmp_path: Path) -> None:
    store = stored(tmp_path, 10, "old")
    store.add_eval({}, run="old")
    with sqlite3.connect(tmp_path / FILE_NAME) as file:
        for table, column in (("run", "last_seen_unix_s"), ("run", "ended_unix_s"), ("result", "unix_s")):
            file.execute(f"UPDATE {table} SET {column} = {time.time() - 40 * 86400}")
    file.close()
    writer(tmp_path, "new", Retention(max_age_days=30)).close(0)
    assert [run.id for run in store.runs()] == ["new"]
    assert store.evals() == ()
    assert not (tmp_path / "runs" / "old").exists()
    assert (tmp_path / "runs" / "new").exists()


def test_a_store_that_is_too_large_loses_the_oldest_requests_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(retention, "_CHUNK", 1000)
    stored(tmp_path, 20_000, "older")
    store = stored(tmp_path, 10_000, "newer")
    with store.connection() as connection:
        assert stored_bytes(connection) > 1 << 20
    writer(tmp_path, "now", Retention(max_bytes=1 << 20)).close(0)
    with store.connection() as connection:
        assert stored_bytes(connection) <= 1 << 20
    assert len(store.requests(store.run("newer"), limit=10**6)) == 10_001
    assert len(store.requests(store.run("older"), limit=10**6)) < 20_001
    assert "--keep-runs-gib" in caplog.text


def test_the_writer_is_not_waited_for_by_whoever_serves(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A folder that can't be written: everything still returns, and the end comes within the bound."""
    caplog.set_level(logging.WARNING)
    (tmp_path / "file").write_text("")
    run = writing.RunWriter(tmp_path / "file" / "state", new_run(tmp_path), Retention())
    run.request(request(1))
    run.close(0)
    assert "--state-dir" in caplog.text


def test_what_the_writer_holds_of_its_file_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SQLite's own bound is 2 MiB, which is full after 30,000 requests: until then the gateway would grow."""
    opened: list[sqlite3.Connection] = []
    connect = writing.connect
    monkeypatch.setattr(writing, "connect", lambda *given: opened.append(connect(*given)) or opened[-1])
    run = writer(tmp_path)
    run.request(request(1))
    until(lambda: (tmp_path / FILE_NAME).exists() and RunStore.open(tmp_path).runs() != ())
    (size,) = opened[0].execute("PRAGMA cache_size").fetchone()
    run.close(0)
    assert -256 <= size < 0  # KiB, where it is negative
