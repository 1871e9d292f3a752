"""What goes wrong with `qserve batch`: one sentence and a status, from a gateway that keeps files and has no worker."""

from __future__ import annotations

import json
import shlex
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import uvloop
from click.testing import CliRunner

from qserve.cli.batch.client import BatchServer
from qserve.cli.batch.command import command
from qserve.cli.batch.document import batch_json
from qserve.cli.interrupted import INTERRUPTED
from qserve.errors import QserveError, UsageError
from qserve.gateway.app import build_gateway
from qserve.gateway.http.server import BoundedServer, build_server
from qserve.gateway.settings import GatewaySettings
from qserve.worker.base import UnixAddress, WorkerFacts, WorkerState, WorkerStatus

KEY = "sk-client-77aa"
LIMIT_S = 60


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("b")
    worker = WorkerStatus(
        WorkerFacts("chat", ("served",), UnixAddress(folder / "s"), "wk", 4, 512), state=WorkerState.READY
    )

    async def serve() -> None:
        server = build_server(
            build_gateway(GatewaySettings(keys=(KEY,)), [worker], files=folder / "files"), "127.0.0.1", 0, 1
        )
        servers.append(server)
        await server.serve()

    servers: list[BoundedServer] = []
    thread = threading.Thread(target=lambda: uvloop.run(serve()))
    thread.start()
    while not servers or not servers[0].started:
        assert thread.is_alive(), "the gateway did not start"
        thread.join(0.01)
    yield f"http://127.0.0.1:{servers[0].servers[0].sockets[0].getsockname()[1]}"
    servers[0].should_exit = True
    thread.join(LIMIT_S)
    assert not thread.is_alive()


@pytest.fixture
def questions(tmp_path: Path) -> Path:
    body = {"model": "other", "messages": [{"role": "user", "content": "1+1?"}]}
    line = {"custom_id": "q", "method": "POST", "url": "/v1/chat/completions", "body": body}
    file = tmp_path / "questions.jsonl"
    file.write_text(json.dumps(line) + "\n")
    return file


def refused(*arguments: str | Path) -> QserveError:
    result = CliRunner().invoke(command, list(map(str, arguments)))
    assert isinstance(result.exception, QserveError), result.output
    return result.exception


def test_a_wrong_key_is_told_before_the_file_is_sent(url: str, questions: Path) -> None:
    """A server that refuses 64 MiB closes the connection, and the client would see a broken pipe."""
    with questions.open("ab") as file:
        file.truncate(64 << 20)
    error = refused(questions, "--url", url, "--api-key", "sk-wrong")
    assert isinstance(error, UsageError)
    assert "/v1/files?limit=1 answered 401" in str(error) and "give one with --api-key or QSERVE_API_KEY" in str(error)


def test_a_key_that_no_header_holds(url: str, questions: Path) -> None:
    assert "can't be sent" in str(refused(questions, "--url", url, "--api-key", "sk-\u2603"))


def test_a_model_that_is_not_served(url: str, questions: Path) -> None:
    error = refused(questions, "--url", url, "--api-key", KEY)
    assert isinstance(error, UsageError)
    assert "line 1: the model 'other' is not served here; there is 'served'" in str(error)


def test_a_service_that_is_not_there(questions: Path) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # bound, and nobody listens
        error = refused(questions, "--url", f"http://127.0.0.1:{closed.getsockname()[1]}")
    assert "is `qserve up` running there?" in str(error) and error.exit_status == 1


def test_results_that_could_not_be_written(url: str, questions: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    error = refused(questions, "--url", url, "--api-key", KEY, "--output", tmp_path / "file" / "x")
    assert "can't be written" in str(error) and error.exit_status == 2


@pytest.fixture
def batch_server(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """In place of a server: its batch, which the command is stopped at while it is in progress."""
    counts = {"total": 2, "completed": 1, "failed": 1}
    batch = {
        "id": "batch_1",
        "status": "in_progress",
        "request_counts": counts,
        "endpoint": "/v1/chat/completions",
        "output_file_id": "output",
        "error_file_id": "error",
    }

    def asked(*_: object) -> dict[str, Any]:
        return dict(batch)

    def download(_: object, file_id: str, target: Path) -> None:
        target.write_text("".join(json.dumps({"custom_id": name, "of": file_id}) + "\n" for name in "ba"))

    def stop(_: float) -> None:
        raise KeyboardInterrupt

    for name, does in {"check": asked, "upload": lambda *_: "file", "create": asked, "batch": asked}.items():
        monkeypatch.setattr(BatchServer, name, does)
    monkeypatch.setattr(BatchServer, "download", download)
    monkeypatch.setattr("qserve.cli.batch.command.time.sleep", stop)
    return batch


def test_after_ctrl_c_the_printed_command_writes_what_this_one_would_have(
    batch_server: dict[str, Any], tmp_path: Path
) -> None:
    folder = tmp_path / "my files"
    folder.mkdir()
    file, output, errors = folder / "questions.jsonl", folder / "answers.jsonl", tmp_path / "bad.jsonl"
    line = {"method": "POST", "url": "/v1/chat/completions", "body": {}}
    file.write_text("".join(json.dumps({"custom_id": name, **line}) + "\n" for name in "ab"))
    stopped = CliRunner().invoke(command, [str(file), "--output", str(output), "--errors", str(errors)])
    assert stopped.exit_code == INTERRUPTED, stopped.output
    assert not output.exists() and not errors.exists()
    program, name, *words = shlex.split(stopped.stderr.partition("To wait for it again: ")[2])
    assert (program, name) == ("qserve", "batch")

    batch_server["status"] = "completed"
    ended = CliRunner().invoke(command, words)
    assert ended.exit_code == 1, ended.output
    for written in (output, errors):
        assert [json.loads(line)["custom_id"] for line in written.read_text().splitlines()] == ["a", "b"], (
            "FILE's order"
        )
    output.unlink()
    assert CliRunner().invoke(command, [str(file), "--resume", "batch_1"]).exit_code == 1
    assert file.with_suffix(".results.jsonl").is_file()


def test_without_a_wait_no_place_for_answers_is_asked_for(batch_server: dict[str, Any], questions: Path) -> None:
    questions.with_suffix(".results.jsonl").mkdir()
    assert "can't be written" in str(refused(questions))
    done = CliRunner().invoke(command, [str(questions), "--no-wait"])
    assert (done.exit_code, done.stdout) == (0, "batch_1\n"), done.output
    assert "give FILE to start a batch, or --resume" in str(refused())
    assert "--resume needs FILE or --output" in str(refused("--resume", "batch_1"))


def test_the_document_names_what_was_written(tmp_path: Path) -> None:
    batch = {
        "id": "batch_1",
        "status": "completed",
        "endpoint": "/v1/chat/completions",
        "request_counts": {"total": 3, "completed": 2, "failed": 1},
    }
    assert batch_json(batch, {"output": tmp_path / "a"}) == {
        "id": "batch_1",
        "status": "completed",
        "endpoint": "/v1/chat/completions",
        "num_requests": 3,
        "num_completed": 2,
        "num_failed": 1,
        "output_file": str(tmp_path / "a"),
        "error_file": None,
    }


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    assert "there is no such file; a file with a request a line" in str(refused(tmp_path / "none.jsonl"))
