"""What the gateway shows of the run store: one document however many requests there are, and errors of the API."""

from __future__ import annotations

import contextlib
import sqlite3
import time
from pathlib import Path

import pytest

from qserve.gateway import run_history
from qserve.gateway.run_history import RunHistory
from qserve.runs import RunStore
from qserve.runs.database import FILE_NAME
from qserve.wire.errors import ApiError
from tests.unit.runs.kept import DIED, request, stored, writer


async def test_a_large_run_is_summed_up_by_a_process_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Below a folder named qserve, as --state-dir has it."""
    kept = RunHistory(stored(tmp_path / "qserve", 5))
    here = await kept.document("2026")
    monkeypatch.setattr(run_history, "_MANY_REQUESTS", 1)
    there = await kept.document("2026")
    assert there["requests"]["groups"] == [dict(group) for group in here["requests"]["groups"]]
    assert there["id"] == here["id"]


async def test_no_such_run_no_store_and_a_store_that_can_not_be_read_are_errors_of_the_api(tmp_path: Path) -> None:
    kept = RunHistory(stored(tmp_path, 1))
    for one in (kept, RunHistory()):
        with pytest.raises(ApiError) as refused:
            await one.document("1999")
        assert (refused.value.status, refused.value.code) == (404, "run_not_found")
    assert await RunHistory().documents() == {"object": "list", "data": []}
    assert await RunHistory().trainings() == {"object": "list", "state_dir": None, "data": []}
    assert await kept.trainings() == {"object": "list", "state_dir": str(tmp_path.parent), "data": []}
    (tmp_path / FILE_NAME).unlink()
    (tmp_path / FILE_NAME).mkdir()
    with pytest.raises(ApiError) as refused:
        await kept.documents()
    assert (refused.value.status, refused.value.code) == (503, "run_store_unusable")


def test_what_keys_used_today_is_known_at_a_start(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    today_ms = int(time.time()) // 86_400 * 86_400_000
    run = writer(tmp_path / "qserve")
    for key, began_ms in (("alice", today_ms), ("alice", today_ms + 1), ("bob", today_ms - 1)):
        run.request(request(1, began_unix_ms=began_ms)._replace(key=key))
    run.request(request(2, DIED, today_ms)._replace(key="alice"))
    run.close(0)
    store = RunStore.open(tmp_path / "qserve")
    assert RunHistory(store).used_today() == {"alice": (2, 14, 22)}
    assert RunHistory().used_today() == {} and not caplog.records
    with contextlib.closing(sqlite3.connect(store.path)) as newer:
        newer.execute("PRAGMA user_version = 999")
    assert RunHistory(store).used_today() == {} and "counts from now on" in caplog.text
