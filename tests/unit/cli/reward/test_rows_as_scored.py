"""Rows are written as they are scored: what Ctrl-C, a full disk and a bad line leave, and how a run continues."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from qserve.cli.reward.eval_reward import command as eval_reward
from qserve.cli.reward.rows_file import RowsFile, fingerprint
from qserve.cli.reward.score import command as score
from qserve.errors import QserveError, UnusableResult, UsageError, WorkerFailed
from tests.unit.evaluation.answering import answering

NUM = 120
PAIRS = [{"id": index, "prompt": "p", "chosen": f"{'a' * (index % 7)}bc", "rejected": "c"} for index in range(NUM)]
COMMANDS = {"score": score, "eval-reward": eval_reward}


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QSERVE_STATE_DIR", str(tmp_path / "state"))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "pairs.jsonl"
    path.write_text("".join(json.dumps(pair) + "\n" for pair in PAIRS))
    return path


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "rows.jsonl"


def rewarding(before: Callable[[int], None] = lambda number: None, **meta: Any) -> Any:
    """A server whose reward is an answer's length; an answer of an x alone is refused. `before` each request."""
    numbers = iter(range(10_000))

    def answer(path: str, body: Any) -> tuple[int, Any]:
        before(next(numbers))
        texts = [one[-1]["content"] for one in body["conversations"]]
        if "x" in texts:
            return 400, {"error": {"message": "an x is no answer"}}
        rows = [{"reward": float(len(text)), "num_tokens": len(text)} for text in texts]
        return 200, {"data": rows, "meta": meta or {"format": "by length"}}

    return answering(answer)


def call(name: str, *arguments: str) -> None:
    COMMANDS[name].main(list(arguments), standalone_mode=False)


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def whole(path: Path) -> bool:
    found = rows(path)
    margins = [row["margin"] == len(row["chosen"]) - len(row["rejected"]) for row in found]
    return [row["id"] for row in found] == list(range(NUM)) and all(margins)


def process(*arguments: str, **more: Any) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "qserve", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **more)


@pytest.mark.parametrize(("name", "number"), [("score", signal.SIGINT), ("eval-reward", signal.SIGTERM)])
def test_an_interrupted_run_is_kept_and_continues(name: str, number: signal.Signals, file: Path, out: Path) -> None:
    third, go_on = threading.Event(), threading.Event()

    def hang(request: int) -> None:
        if request == 2:
            third.set()
        if request >= 2:
            go_on.wait(60)

    with rewarding(hang) as url:
        arguments = (name, str(file), "--url", url, "--concurrency", "1", "--output", str(out))
        running = process(*arguments, "--api-key", "a-secret")
        assert third.wait(60)
        running.send_signal(number)
        _, said = running.communicate(timeout=60)
        go_on.set()
        assert running.returncode == 130, said
        kept = rows(out)
        assert [row["id"] for row in kept] == list(range(len(kept))) and 0 < len(kept) < NUM
        assert f"interrupted; {len(kept)} of {NUM} rows are in {out}; continue with:\n" in said
        last = said.splitlines()[-1]
        assert last == f'  qserve {" ".join(arguments)} --api-key "$QSERVE_API_KEY" --resume' and "a-secret" not in said
        with pytest.raises(UsageError, match=f"has {len(kept)} rows of a run that was interrupted; continue it with"):
            call(*arguments)
        with out.open("a") as half:
            half.write('{"id": 99, "pro')
        call(*arguments, "--resume")
    assert whole(out) and not out.with_name("rows.jsonl.resume.json").exists()


def test_a_disk_that_fills_up_is_a_sentence(file: Path, out: Path) -> None:
    """By a limit of the process, which a full disk is to it."""
    most = len(json.dumps(PAIRS[0])) * 60
    with rewarding() as url:
        arguments = ("score", str(file), "--url", url, "--concurrency", "1", "--output", str(out))
        full = process(*arguments, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (most, most)))
        _, said = full.communicate(timeout=60)
        kept = rows(out)
        assert full.returncode == 1 and 0 < len(kept) < NUM, said
        assert "Traceback" not in said and said.count("qserve: ") == 1
        assert (
            f"rows can't be written to {out}: File too large; {len(kept)} of {NUM} rows are in {out}; continue with:"
            in said
        )
        call(*arguments, "--resume")
    assert whole(out)


@pytest.mark.parametrize("name", COMMANDS)
def test_a_device_that_is_full(name: str, file: Path) -> None:
    with (
        rewarding() as url,
        pytest.raises(QserveError, match=r"rows can't be written to /dev/full: No space left on device$"),
    ):
        call(name, str(file), "--url", url, "--output", "/dev/full")


def test_standard_output_that_is_full(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with rewarding() as url, Path("/dev/full").open("w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        with pytest.raises(QserveError, match=r"^rows can't be written to standard output: No space left"):
            call("score", str(file), "--url", url)
    assert full.closed  # as at exit: what it still held does not fail once more


def test_what_can_be_known_is_told_before_anything_is_asked(
    file: Path, out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(words: str, *arguments: str) -> None:
        for name in COMMANDS:
            with pytest.raises(UsageError, match=words):
                call(name, str(file), "--url", "http://127.0.0.1:9", *arguments)

    refused("there is no folder .*nowhere; make it first", "--output", str(tmp_path / "nowhere" / "rows.jsonl"))
    refused("is the input itself", "--output", str(file))
    refused("--resume needs .* --output", "--resume")
    out.write_text("{}\n")
    refused("is complete, or another program wrote it", "--output", str(out), "--resume")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10, 9, 1))  # type: ignore[attr-defined]
    refused(r"the rows take about .* and the disk has 1 B left", "--output", str(out))
    assert out.read_text() == "{}\n"
    for flag in ("--model=m", "--api-key=k", "--concurrency=2"):
        with pytest.raises(UsageError, match="for a server; name one with --url"):
            call("score", str(file), flag)
    with pytest.raises(UsageError, match="--json needs a file for the rows"):
        call("score", str(file), "--json")


def interrupted(file: Path, out: Path, url: str) -> None:
    """Half of it, by a server that goes away."""
    with pytest.raises(WorkerFailed, match=r"stopped answering .*; \d+ of 120 rows are in .*; continue with:"):
        call("score", str(file), "--url", url, "--concurrency", "1", "--output", str(out))


def test_a_run_continues_only_as_what_it_was(file: Path, out: Path) -> None:
    def go_away(number: int) -> None:
        if number >= 2 and not back:
            raise ConnectionError

    back: list[bool] = []
    with rewarding(go_away) as url, rewarding(format="another") as other:
        interrupted(file, out, url)
        note = out.with_name("rows.jsonl.resume.json")
        before, noted, text = out.read_bytes(), note.read_text(), file.read_text()

        def refused(words: str, *arguments: str) -> None:
            with pytest.raises(UsageError, match=words):
                call("score", str(file), "--output", str(out), "--resume", *arguments)
            assert out.read_bytes() == before

        refused("--url was http.* and is http", "--url", other)
        refused("--normalize was False and is True", "--url", url, "--normalize")
        note.write_text(noted.replace(url, other))
        refused("format was by length and is another", "--url", other)
        note.write_text(noted)
        file.write_text(text + json.dumps(PAIRS[0]) + "\n")
        refused("the input has changed", "--url", url)
        file.write_text(text)
        note.write_text("{")
        refused("is damaged", "--url", url)
        note.write_text(noted)
        back.append(True)
        call("score", str(file), "--output", str(out), "--resume", "--url", url)
    assert whole(out)


def test_a_checkpoint_that_is_trained_on_is_another_model(out: Path, tmp_path: Path) -> None:
    model = tmp_path / "model" / "model.safetensors"
    model.parent.mkdir()
    model.write_bytes(b"12")

    def about() -> dict[str, Any]:
        return {"the checkpoint": fingerprint(str(model.parent))}

    unfinished = RowsFile(out, about(), resume=False)
    unfinished.begin({})
    unfinished.append([{"reward": 1.0, "text": "\ud800"}])  # half of a character, which UTF-8 does not have
    assert RowsFile(out, about(), resume=True).kept == [{"reward": 1.0, "text": "\ud800"}]
    os.utime(model, ns=(1, 1))
    with pytest.raises(UsageError, match="the checkpoint has changed"):
        RowsFile(out, about(), resume=True)


BROKEN = ('{"prompt": "p"', "[1]", '{"nothing": 1}', json.dumps({"prompt": "p", "chosen": "ab", "rejected": "x"}))


@pytest.mark.parametrize("name", COMMANDS)
def test_bad_lines_are_reported_and_the_others_scored(
    name: str, file: Path, out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [json.dumps(pair) for pair in PAIRS]
    file.write_text("\n".join([BROKEN[0], *lines[:50], BROKEN[1], *lines[50:], *BROKEN[2:]]))
    with rewarding() as url:
        arguments = (name, str(file), "--url", url, "--output", str(out))
        with pytest.raises(UnusableResult, match="4 of 124 lines could not be scored"):
            call(*arguments, "--json")
        told = capsys.readouterr()
        found = rows(out)
        document = json.loads(told.out)
        assert [one["line"] for one in document["errors"]] == [1, 52, 123, 124]
        assert [place for place, row in enumerate(found, 1) if "error" in row] == [1, 52, 123, 124]
        assert [row["id"] for row in found if "id" in row] == list(range(NUM))
        assert "line 1 is left out: not valid JSON" in told.err and "line 124 is left out: an x is no" in told.err
        if name == "eval-reward":
            assert document["overall"]["num_asked"] == NUM and document["num_left_out"] == 4
        else:
            assert (document["num_rows"], document["num_failed_rows"], document["num_texts"]) == (124, 4, 2 * NUM)
        with pytest.raises(UsageError, match=r"line 1: not valid JSON"):
            call(*arguments, "--strict")
        file.write_text("\n".join([*lines[:50], BROKEN[3], *lines[50:]]))
        with pytest.raises(UsageError, match="line 51 can't be scored: an x is no answer; without --strict"):
            call(*arguments, "--strict")
        assert len(rows(out)) == 50


def test_a_file_without_a_line_to_score_is_refused(file: Path) -> None:
    file.write_text("\n".join(BROKEN[:3]))
    for name in COMMANDS:
        with pytest.raises(UsageError, match="line 1: not valid JSON"):
            call(name, str(file), "--url", "http://127.0.0.1:9")


def test_a_server_that_is_full_is_asked_again_and_one_that_refuses_the_key_is_not(file: Path, out: Path) -> None:
    import http.server

    answers = [(429, {"retry-after": "0"}), (503, {"retry-after": "0"})]

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            if self.headers["authorization"] != "Bearer right":
                status, headers, value = 401, {}, {"error": {"message": "this key is none"}}
            elif answers:
                (status, headers), value = answers.pop(), {"error": {"message": "full"}}
            else:
                texts = [one[-1]["content"] for one in body["conversations"]]
                data = [{"reward": float(len(text)), "num_tokens": 1} for text in texts]
                status, headers, value = 200, {}, {"data": data}
            text = json.dumps(value).encode()
            self.send_response(status)
            for name, one in {**headers, "content-type": "application/json", "content-length": str(len(text))}.items():
                self.send_header(name, one)
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_: object) -> None:
            """Says nothing."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        with pytest.raises(UsageError, match="this key is none; name the key: --api-key, or"):
            call("score", str(file), "--url", url, "--output", str(out), "--api-key", "wrong")
        assert not out.exists()
        call("score", str(file), "--url", url, "--output", str(out), "--api-key", "right")
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    assert whole(out) and not answers
