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
from collections.abc import Callable, Iterator
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


@contextlib.contextmanager
def hanging(num: int, answer: Callable[[Any], tuple[int, Any]]) -> Iterator[tuple[str, threading.Event]]:
    """A server of `answer` that hangs after `num` requests until the block ends; the event: it hangs."""
    numbers, hangs, end = iter(range(10_000)), threading.Event(), threading.Event()

    def answered(path: str, body: Any) -> tuple[int, Any]:
        if next(numbers) >= num:
            hangs.set()
            end.wait(60)
        return answer(body)

    with answering(answered) as url:
        try:
            yield url, hangs
        finally:
            end.set()


def ended(running: subprocess.Popen[str], hangs: threading.Event, number: signal.Signals) -> str:
    """What it has said, of what is piped; after the signal its exit status is that of Ctrl-C."""
    try:
        assert hangs.wait(60)
        running.send_signal(number)
        output, errors = running.communicate(timeout=20)
    finally:
        running.kill()
    said = errors or output
    assert running.returncode == 130, said
    assert "Error" not in said and "exception" not in said
    return said


@pytest.mark.parametrize("name", ["score", "eval-reward"])
def test_sigterm_ends_a_background_job_of_a_script(name: str, file: Path, tmp_path: Path) -> None:
    """Shells start it with Ctrl-C ignored."""
    with hanging(2, rewards_of) as (url, hangs):
        arguments = (name, str(file), "--url", url, "--concurrency", "1", "--output", str(tmp_path / "rows.jsonl"))
        running = process(
            *arguments, stderr=subprocess.PIPE, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN)
        )
        said = ended(running, hangs, signal.SIGTERM)
    assert f"interrupted; 32 of {NUM} rows are in {tmp_path / 'rows.jsonl'}; continue with:" in said
    assert len((tmp_path / "rows.jsonl").read_text().splitlines()) == 32


def test_a_stop_while_the_second_model_scores_continues(file: Path, tmp_path: Path) -> None:
    """All rows of the first are there by then; --resume asks the second alone."""
    out = tmp_path / "rows.jsonl"
    with answering(lambda path, body: rewards_of(body)) as first:
        arguments = ("eval-reward", str(file), "--url", first, "--output", str(out), "--against")
        with hanging(2, rewards_of) as (second, hangs):
            said = ended(process(*arguments, second, stderr=subprocess.PIPE), hangs, signal.SIGTERM)
    assert f"interrupted; {NUM} of {NUM} rows are in {out}; continue with:" in said
    with answering(lambda path, body: rewards_of(body)) as second:
        command = [*arguments, second, "--resume", "--json"]
        done = process(*command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        told, said = done.communicate(timeout=60)
    assert done.returncode == 0, said
    assert json.loads(told)["against"]["decided_alike"] == 1.0
    assert len(out.read_text().splitlines()) == NUM and not out.with_name("rows.jsonl.resume.json").exists()


def test_a_second_server_that_goes_away_costs_no_row(file: Path, tmp_path: Path) -> None:
    out, last = tmp_path / "rows.jsonl", 2 * NUM % 32  # texts of the last request

    def all_but_the_last(path: str, body: Any) -> tuple[int, Any]:
        return (500, "gone") if len(body["conversations"]) == last else rewards_of(body)

    with answering(lambda path, body: rewards_of(body)) as first, answering(all_but_the_last) as second:
        arguments = ("eval-reward", str(file), "--url", first, "--output", str(out), "--against", second)
        done = process(*arguments, stderr=subprocess.PIPE)
        _, said = done.communicate(timeout=60)
    assert done.returncode == 5 and "Traceback" not in said
    assert f"{second} stopped answering (status 500: gone); {NUM} of {NUM} rows are in {out}; continue with:" in said
    assert out.with_name("rows.jsonl.resume.json").exists()


@pytest.mark.parametrize("ignored", [False, True])
def test_a_check_that_asks_a_judge_ends_without_a_traceback(file: Path, tmp_path: Path, ignored: bool) -> None:
    def verdict(body: Any) -> tuple[int, Any]:
        return 200, {"choices": [{"message": {"content": "Score: 5"}}]}

    with hanging(0, verdict) as (url, hangs):
        recipe = tmp_path / "rewards.yaml"
        recipe.write_text(f"parts:\n- {{name: helpful, judge: pointwise, url: '{url}/v1', model: m}}\n")
        handler = signal.SIG_IGN if ignored else signal.SIG_DFL
        running = process(
            "reward",
            "check",
            str(file),
            "--reward",
            str(recipe),
            stderr=subprocess.PIPE,
            preexec_fn=lambda: signal.signal(signal.SIGINT, handler),
        )
        said = ended(running, hangs, signal.SIGTERM)
    assert "interrupted; nothing is in the run store" in said


def test_parts_that_were_checked_are_shown_after_a_stop(file: Path, tmp_path: Path) -> None:
    rules = "- {name: form, rule: regex, pattern: b}\n- {name: right, rule: exact}\n"
    with hanging(0, rewards_of) as (url, hangs):
        recipe = tmp_path / "rewards.yaml"
        recipe.write_text(f"parts:\n{rules}- {{name: helpful, judge: pointwise, url: '{url}/v1', model: m}}\n")
        running = process(
            "reward", "check", str(file), "--reward", str(recipe), stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        said = ended(running, hangs, signal.SIGTERM)
    assert f"{2 * NUM} texts, part by part" in said and f"{NUM} of {NUM}" in said
    assert "error: right: it has no value for any of the" in said
    assert "interrupted; the figures above are of form, right; none is in the run store; start again with:" in said
