"""Of the processes of one run of the tests, one compiles the test files in a fresh clone."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from tests import collecting


@pytest.fixture
def a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setattr(collecting.tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr(collecting.atexit, "register", lambda *call, **fields: None)
    monkeypatch.setenv("PYTEST_XDIST_TESTRUNUID", "a-run")
    return monkeypatch


def other_collects(a_run: pytest.MonkeyPatch) -> threading.Thread:
    a_run.setenv("PYTEST_XDIST_WORKER", "gw1")

    def collect() -> None:
        with collecting.rewritten_once():
            pass

    other = threading.Thread(target=collect, daemon=True)
    other.start()
    return other


def test_others_wait_for_the_first_in_a_fresh_clone(a_run: pytest.MonkeyPatch) -> None:
    a_run.setattr(collecting, "_are_rewritten", lambda: False)
    other = other_collects(a_run)
    other.join(0.3)
    assert other.is_alive(), "it did not wait"
    a_run.setenv("PYTEST_XDIST_WORKER", "gw0")
    with collecting.rewritten_once():
        assert other.is_alive()
    other.join(10)
    assert not other.is_alive()


def test_nobody_waits_where_they_are_compiled(a_run: pytest.MonkeyPatch) -> None:
    a_run.setattr(collecting, "_are_rewritten", lambda: True)
    other = other_collects(a_run)
    other.join(10)
    assert not other.is_alive()
