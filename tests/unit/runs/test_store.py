"""What was written comes back, by the id or the beginning of it, and as the JSON that the API answers."""

from __future__ import annotations

import json
import sqlite3
import stat
from pathlib import Path

import pytest

from qserve.errors import UsageError
from qserve.runs import RunStore, StoreUnusable
from qserve.runs.database import FILE_NAME
from qserve.runs.document import run_document, runs_document
from qserve.runs.retention import Retention
from qserve.runs.schema import MIGRATIONS
from qserve.runs.writer import RunWriter
from tests.unit.runs.kept import new_run, request, stored, until, writer


def test_a_run_comes_back_as_it_was(tmp_path: Path) -> None:
    store = stored(tmp_path)
    run = store.run()
    assert (run.id, run.state, run.exit_status) == ("20261121-120000-1", "ended", 0)
    assert run.command == ("qserve", "up", "--model", "demo")
    assert (run.num_requests, run.num_errors, run.num_lost) == (101, 1, 0)
    assert run.url == "http://127.0.0.1:8000"
    (worker,) = run.workers
    assert worker.models == ("demo",)
    assert worker.plan["engine"] == "vllm"
    assert worker.start_phases_s == {"loading weights": 1.5}
    assert worker.num_restarts == 1
    (sample,) = store.memory(run)
    assert sample.terms == {"weights_bytes": 99, "kv_cache_tokens": 1000}
    assert sample.document["sources"] == {"weights_bytes": "counted"}
    assert [event.event for event in store.events(run)] == ["ready", "restart"]


def test_a_store_that_is_not_there_is_not_made_by_reading(tmp_path: Path) -> None:
    assert RunStore.open_existing(tmp_path / "state") is None
    assert not (tmp_path / "state").exists()
    made = RunStore.open(tmp_path / "state")
    assert RunStore.open_existing(tmp_path / "state") == made
    with sqlite3.connect(made.path) as other:
        other.execute(f"PRAGMA user_version = {len(MIGRATIONS) + 1}")
    other.close()
    with pytest.raises(StoreUnusable, match="of a newer qserve"):
        RunStore.open_existing(tmp_path / "state")


def test_requests_come_newest_first_and_filtered(tmp_path: Path) -> None:
    store = stored(tmp_path)
    run = store.run()
    newest, before = store.requests(run, limit=2)
    assert (newest.request_id, newest.status, newest.error_code) == ("req-100", 502, "worker_died")
    assert before.e2e_ms == 100.0
    assert before.ttft_ms == 50.0
    assert before.tpot_ms == pytest.approx(5.0), "(E2E - TTFT) over all tokens but the first"
    assert [one.request_id for one in store.requests(run, only_errors=True)] == ["req-100"]
    assert store.requests(run, route="/nowhere") == ()
    assert len(store.requests(run, worker="chat", offset=100)) == 1


def test_percentiles_are_of_what_succeeded(tmp_path: Path) -> None:
    store = stored(tmp_path)
    (chat,) = store.traffic(store.run()).workers
    e2e = chat.summary.latency_ms["e2e"]
    assert (e2e.count, e2e.min, e2e.max) == (100, 1.0, 100.0)
    assert e2e.p50 == pytest.approx(50.5), "between two values on a straight line"
    assert e2e.p99 == pytest.approx(99.01)
    assert chat.summary.errors == {"worker_died": 1}


def test_events_stand_for_tokens_that_nobody_asked_to_be_counted(tmp_path: Path) -> None:
    """Most clients stream without `include_usage`; their tokens are tokens all the same."""
    run = writer(tmp_path)
    run.request(request(1)._replace(completion_tokens=None, num_events=12))
    run.request(request(1)._replace(completion_tokens=None, ttft_us=None, num_events=0))
    run.close(0)
    store = RunStore.open(tmp_path)
    (found,) = store.traffic(store.run()).workers
    assert found.summary.completion_tokens == 12
    assert found.summary.latency_ms["tpot"].count == 1


def test_answers_that_were_sent_at_once_have_no_time_per_token(tmp_path: Path) -> None:
    run = writer(tmp_path)
    for number in range(3):
        run.request(request(number)._replace(ttft_us=1000 * (number + 1)))  # as long as the whole
    run.request(request(9))
    run.close(0)
    store = RunStore.open(tmp_path)
    (found,) = store.traffic(store.run()).workers
    assert (found.summary.latency_ms["tpot"].count, found.summary.latency_ms["ttft"].count) == (1, 4)
    assert [one.tpot_ms is None for one in store.requests(store.run())] == [False, True, True, True]


def test_ids_may_be_cut_short_but_not_ambiguous(tmp_path: Path) -> None:
    stored(tmp_path, 1, "20261121-120000-1")
    store = stored(tmp_path, 1, "20261121-130000-2")
    assert store.run("20261121-13").id == "20261121-130000-2"
    assert store.run().id == "20261121-130000-2"
    with pytest.raises(UsageError, match="several"):
        store.run("20261121")
    with pytest.raises(UsageError, match="qserve runs"):
        store.run("1999")
    assert store.find("20261121") is None
    assert [run.id for run in store.runs()] == ["20261121-130000-2", "20261121-120000-1"]


def test_an_id_that_begins_another_is_still_one(tmp_path: Path) -> None:
    stored(tmp_path, 1, "20261121-120000-1")
    store = stored(tmp_path, 1, "20261121-120000-12")
    assert store.run("20261121-120000-1").id == "20261121-120000-1"


def test_results_are_kept_beside_a_run_or_without_one(tmp_path: Path) -> None:
    store = stored(tmp_path, 1)
    run = store.run()
    kept = store.add_eval({"acc": 0.5}, name="gsm8k", run=run)
    store.add_bench({"p50": 3}, name="load", run=run.id)
    store.add_comparison({"rows": []}, name="bf16, nf4")
    assert store.evals(run) == (kept,)
    assert store.benches(run)[0].document == {"p50": 3}
    assert store.comparisons(run) == ()
    assert store.comparisons()[0].run is None


def test_the_documents_are_json_as_they_are(tmp_path: Path) -> None:
    store = stored(tmp_path, 3)
    document = json.loads(json.dumps(run_document(store, store.run())))
    assert document["workers"][0]["plan"]["engine_version"] == "0.32.0"
    assert document["requests"]["workers"][0]["summary"]["num_requests"] == 4
    (brief,) = json.loads(json.dumps(runs_document(store)))["data"]
    assert brief["workers"][0]["quant"] == "bf16"
    assert "plan" not in brief["workers"][0]


def test_a_run_that_is_running_can_not_be_deleted_and_one_that_ended_goes_whole(tmp_path: Path) -> None:
    running = writer(tmp_path, "20261121-140000-3")
    store = stored(tmp_path, 5)
    until(lambda: len(store.runs()) == 2)  # the first one's thread may not have written yet
    try:
        ended = store.run("20261121-12")
        store.add_eval({}, run=ended)
        assert store.delete([ended, ended]) == (ended.id,)
        assert not ended.folder.exists()
        assert store.evals() == ()
        with pytest.raises(UsageError, match="is running"):
            store.delete([store.run("20261121-14")])
    finally:
        running.close(0)
    assert store.run().state == "ended"


def test_a_run_that_could_not_write_for_long_still_runs_where_its_process_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("qserve.runs.writer._SIGN_OF_LIFE_S", 1e9)
    running = writer(tmp_path)
    store = RunStore.open(tmp_path)
    until(lambda: store.runs() != ())
    with store.connection() as connection:
        connection.execute("UPDATE run SET last_seen_unix_s = 1")
    try:
        assert store.run().state == "running"
        with store.connection() as connection:
            connection.execute("UPDATE run SET last_seen_unix_s = 1, host = 'another machine'")
        assert store.run().state == "died"
    finally:
        running.close(0)


def test_nobody_else_may_read_the_store(tmp_path: Path) -> None:
    stored(tmp_path, 1)
    assert stat.S_IMODE((tmp_path / FILE_NAME).stat().st_mode) == 0o600


def test_a_store_of_an_older_qserve_is_brought_up_to_date(tmp_path: Path) -> None:
    old = sqlite3.connect(tmp_path / FILE_NAME)
    old.executescript(MIGRATIONS[0] + "PRAGMA user_version = 1;")
    old.execute("INSERT INTO run VALUES (1, 'old', 1, 1, 2, 0, 'h', 1, '', '[]', '{}', '{}', '/x', NULL, 0, 0, 0)")
    old.commit()
    old.close()
    store = RunStore.open(tmp_path)
    assert (store.run().id, store.run().started_by) == ("old", "")
    assert store.residuals() == ()
    assert stored(tmp_path, 3, "new").run().id == "new", "and it is written to"


def test_the_newest_run_is_not_one_that_a_comparison_started_for_itself(tmp_path: Path) -> None:
    def kept(name: str, started_by: str) -> None:
        RunWriter(tmp_path, new_run(tmp_path, name, started_by), Retention()).close(0)

    kept("1-compared", "compare")
    assert RunStore.open(tmp_path).run().id == "1-compared", "better than none"
    kept("2-mine", "")
    kept("3-compared", "compare")
    store = RunStore.open(tmp_path)
    assert store.run().id == "2-mine"
    assert store.run("3").id == "3-compared"
    assert [run.id for run in store.runs()] == ["3-compared", "2-mine", "1-compared"]
    kept("4-evaluated", "eval")
    assert store.run().id == "4-evaluated", "its evaluation is what one wants to see"


def test_a_store_of_a_newer_qserve_is_refused_and_left_alone(tmp_path: Path) -> None:
    newer = sqlite3.connect(tmp_path / FILE_NAME)
    newer.executescript("CREATE TABLE run (id TEXT); PRAGMA user_version = 999;")
    newer.close()
    before = (tmp_path / FILE_NAME).read_bytes()
    with pytest.raises(StoreUnusable, match="newer qserve"):
        RunStore.open(tmp_path)
    assert (tmp_path / FILE_NAME).read_bytes()[100:] == before[100:]


def test_a_broken_store_is_set_aside_with_a_sentence(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / FILE_NAME).write_bytes(b"no database " * 100)
    store = RunStore.open(tmp_path)
    assert store.runs() == ()
    (kept,) = tmp_path.glob(f"{FILE_NAME}.broken-*")
    assert kept.read_bytes().startswith(b"no database")
    assert kept.name in caplog.text


def test_a_folder_that_can_not_be_made_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreUnusable, match="--state-dir"):
        RunStore.open(tmp_path / "file" / "state")
