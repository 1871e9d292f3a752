"""Scoring as shells start it: rows go to a file and messages to a terminal; a background job ignores Ctrl-C."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.unit.evaluation.answering import answering

NUM = 70


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QSERVE_STATE_DIR", str(tmp_path / "state"))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "pairs.jsonl"
    pairs = [{"id": index, "prompt": "p", "chosen": "ab", "rejected": "c"} for index in range(NUM)]
    path.write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
    return path


def rewards_of(body: Any) -> tuple[int, Any]:
    """A server's answer: the reward of a text is its length."""
    texts = [one[-1]["content"] for one in body["conversations"]]
    return 200, {"data": [{"reward": float(len(text)), "num_tokens": 1} for text in texts]}


def process(*arguments: str, **more: Any) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-m", "qserve", *arguments], text=True, **more)


@contextlib.contextmanager
def terminal() -> Iterator[tuple[int, list[bytes]]]:
    """Its end for a program, and what was shown there, complete after the block."""
    ours, theirs = pty.openpty()
    shown: list[bytes] = []

    def read() -> None:
        with contextlib.suppress(OSError):  # once the other side is closed
            while part := os.read(ours, 65536):
                shown.append(part)

    reader = threading.Thread(target=read)
    reader.start()
    try:
        yield theirs, shown
    finally:
        os.close(theirs)
        reader.join()
        os.close(ours)


def test_rows_go_to_a_file_while_the_progress_is_on_a_terminal(file: Path, tmp_path: Path) -> None:
    with (
        answering(lambda path, body: rewards_of(body)) as url,
        terminal() as (screen, shown),
        (tmp_path / "rows.jsonl").open("w") as out,
    ):
        environment = {**os.environ, "TERM": "xterm", "COLUMNS": "80"}
        scoring = process("score", str(file), "--url", url, stdout=out, stderr=screen, env=environment)
        assert scoring.wait(60) == 0
    said = b"".join(shown).decode()
    rows = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    assert [row["id"] for row in rows] == list(range(NUM)) and all(row["margin"] == 1.0 for row in rows)
    assert f"Scored {NUM} of {NUM} rows" in said and '"margin"' not in said
