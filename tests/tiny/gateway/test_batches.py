"""Files and batches through the unmodified openai client: a real gateway in a process of its own, a fake worker."""

from __future__ import annotations

import http.client
import itertools
import json
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import openai
import pytest

from tests.tiny.gateway.conftest import WORKER_KEY, FakeWorkerProcess, chat

CHAT = "/v1/chat/completions"
KEYS = tuple(f"sk-client-{number:04d}" for number in range(20))
LIMIT_S = 60  # keeps a broken promise from hanging the suite


class Gateways:
    """Gateways over one worker and one folder; each can be killed."""

    def __init__(self, folder: Path, num_slots: int = 8) -> None:
        self.folder = folder
        self.num_slots = num_slots
        self.worker = FakeWorkerProcess(folder / "w.sock")
        self.worker.start()
        self.keys = itertools.cycle(KEYS)
        self.processes: list[subprocess.Popen[str]] = []
        self.url = ""

    def start(self) -> openai.OpenAI:
        script = Path(__file__).with_name("batch_gateway.py")
        arguments = (str(self.worker.socket), WORKER_KEY, str(self.folder / "files"), str(self.num_slots), *KEYS)
        command = [sys.executable, str(script), *arguments]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.processes.append(process)
        port = process.stdout.readline().strip()
        assert port, "the gateway did not start"
        self.url = f"http://127.0.0.1:{port}"
        return self.client()

    def client(self, key: str = "") -> openai.OpenAI:
        """Without a key: somebody who was not here before, and so sees no files."""
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key=key or next(self.keys), max_retries=0, timeout=30)

    def kill(self) -> None:
        process = self.processes.pop()
        process.send_signal(signal.SIGKILL)
        process.wait(60)
        process.stdin.close()
        process.stdout.close()

    def num_asked(self) -> int:
        """Requests that the worker has seen, ever."""
        transport = httpx.HTTPTransport(uds=str(self.worker.socket))
        with httpx.Client(transport=transport, headers={"authorization": f"Bearer {WORKER_KEY}"}) as http:
            return len(http.get("http://worker/debug").json()["order"])

    def end(self) -> None:
        while self.processes:
            self.kill()
        self.worker.kill()


@pytest.fixture(scope="module")
def gateways(tmp_path_factory):
    """One gateway that runs, for all tests that do not kill it."""
    one = Gateways(tmp_path_factory.mktemp("shared"))
    one.start()
    yield one
    one.end()


@pytest.fixture
def own(tmp_path):
    """Gateways of one test, which may kill them; none runs yet."""
    one = Gateways(tmp_path)
    yield one
    one.end()


@pytest.fixture
def client(gateways):
    return gateways.client()


def lines_of(count, **knobs):
    """Requests whose ids tell their number; `user` lets the fake worker keep them in its order."""
    knobs = {"chunks": 2, **knobs}
    lines = [
        {
            "custom_id": f"q-{number}",
            "method": "POST",
            "url": CHAT,
            "body": chat(stream=False, user=f"q-{number}", **knobs),
        }
        for number in range(count)
    ]
    return ("\n".join(map(json.dumps, lines)) + "\n").encode()


def begin(client, content, **fields):
    file = client.files.create(file=("questions.jsonl", content), purpose="batch")
    return client.batches.create(input_file_id=file.id, endpoint=CHAT, **{"completion_window": "24h", **fields})


def until(client, batch, holds=lambda batch: batch.status in ("completed", "failed", "expired", "cancelled")):
    deadline = time.monotonic() + LIMIT_S
    while not holds(batch):
        assert time.monotonic() < deadline, batch
        time.sleep(0.05)
        batch = client.batches.retrieve(batch.id)
    return batch


def records(client, file_id):
    return [json.loads(line) for line in client.files.content(file_id).text.splitlines()]


def test_a_batch_from_its_file_to_its_answers(client):
    content = lines_of(30)
    batch = begin(client, content, metadata={"of": "test"})
    assert batch.status == "validating" and batch.metadata == {"of": "test"}
    assert client.files.content(batch.input_file_id).content == content
    file = client.files.retrieve(batch.input_file_id)
    assert (file.filename, file.bytes, file.purpose) == ("questions.jsonl", len(content), "batch")
    done = until(client, batch)
    assert (done.status, done.model, done.error_file_id) == ("completed", "fake", None)
    assert done.request_counts.model_dump() == {"total": 30, "completed": 30, "failed": 0}
    assert done.created_at <= done.in_progress_at <= done.finalizing_at <= done.completed_at < done.expires_at
    answers = records(client, done.output_file_id)
    assert sorted(one["custom_id"] for one in answers) == sorted(f"q-{number}" for number in range(30))
    for one in answers:
        assert one["id"].startswith("batch_req_") and one["error"] is None
        assert one["response"]["status_code"] == 200 and one["response"]["request_id"].startswith("req-")
        assert one["response"]["body"]["choices"][0]["message"]["content"] == " w0 w1"
    assert [one.id for one in client.batches.list()] == [batch.id]
    assert {one.id for one in client.files.list(purpose="batch_output")} == {done.output_file_id}
    with pytest.raises(openai.ConflictError, match="completed already"):
        client.batches.cancel(batch.id)
    assert client.files.delete(done.output_file_id).deleted
    with pytest.raises(openai.NotFoundError):
        client.files.content(done.output_file_id)


def test_one_key_sees_nothing_of_another(gateways):
    mine, yours = gateways.client(), gateways.client()
    batch = begin(mine, lines_of(1))
    until(mine, batch)
    for ask in (yours.files.retrieve, yours.files.content, yours.files.delete):
        with pytest.raises(openai.NotFoundError):
            ask(batch.input_file_id)
    for ask in (yours.batches.retrieve, yours.batches.cancel):
        with pytest.raises(openai.NotFoundError):
            ask(batch.id)
    with pytest.raises(openai.NotFoundError):
        yours.batches.create(input_file_id=batch.input_file_id, endpoint=CHAT, completion_window="24h")
    assert list(yours.files.list()) == list(yours.batches.list()) == []
    assert httpx.get(f"{gateways.url}/v1/files").status_code == 401


def test_wrong_lines_fail_the_batch_with_their_numbers(gateways, client):
    asked_before = gateways.num_asked()
    wrong = b'{"custom_id": "a"\n' + lines_of(1) + lines_of(1)
    failed = until(client, begin(client, wrong))
    assert failed.status == "failed"
    told = [(error.line, error.code) for error in failed.errors.data]
    assert told == [(1, "invalid_json_line"), (3, "duplicate_custom_id")]
    unknown = lines_of(1).replace(b'"model": "fake"', b'"model": "gpt-9"')
    (error,) = until(client, begin(client, unknown)).errors.data
    assert error.code == "model_not_found" and "there is 'fake'" in error.message
    assert gateways.num_asked() == asked_before


def test_what_one_line_does_wrong_is_its_own_error(client):
    content = lines_of(3).replace(b'"q-1", "method"', b'"q-1", "method"').splitlines()
    content[1] = content[1].replace(b'"stream": false', b'"temperature": 9')
    done = until(client, begin(client, b"\n".join(content)))
    assert done.status == "completed"
    assert (done.request_counts.completed, done.request_counts.failed) == (2, 1)
    (error,) = records(client, done.error_file_id)
    assert error["custom_id"] == "q-1" and error["response"]["status_code"] == 400
    assert error["response"]["body"]["error"]["param"] == "temperature"


@pytest.mark.parametrize(
    ("fields", "match"),
    [
        ({"purpose": "fine-tune", "file": ("a", b"x")}, "'purpose' must be 'batch'"),
        ({"purpose": "batch", "file": ("a", b"")}, "the file is empty"),
        ({"purpose": "batch", "file": ("a", b"x"), "extra_body": {"colour": "red"}}, "'colour' is not a field"),
        ({"purpose": "batch", "file": ("a", b"x"), "expires_after": {"anchor": "created_at", "seconds": 5}}, "seconds"),
    ],
)
def test_an_upload_that_is_refused(gateways, client, fields, match):
    with pytest.raises(openai.BadRequestError, match=match):
        client.files.create(**fields)
    assert list(client.files.list()) == []
    assert not any((gateways.folder / "files" / "incoming").iterdir())


def test_forms_that_are_none(gateways):
    url, key = f"{gateways.url}/v1/files", {"authorization": f"Bearer {next(gateways.keys)}"}
    form = {"data": {"purpose": "batch"}, "files": {"file": ("a", b"x")}}

    def posted(headers=None, **fields):
        return httpx.post(url, headers={**key, **(headers or {})}, **fields).status_code

    border = {"content-type": "multipart/form-data; boundary=b"}
    statuses = {
        "json": posted(json={}),
        "no file": posted(data={"purpose": "batch"}, files={"other": ("a", b"x")}),
        "cut off": posted(border, content=b"--b\r\n"),
        "nonsense": posted(border, content=b"x" * 99),
        "another site": posted({"origin": "https://evil.example"}, **form),
        "its own page": posted({"origin": gateways.url}, **form),
    }
    assert statuses == {
        "json": 415,
        "no file": 400,
        "cut off": 400,
        "nonsense": 400,
        "another site": 403,
        "its own page": 200,
    }
    told = http.client.HTTPConnection(gateways.url.removeprefix("http://"), timeout=30)
    told.request("POST", "/v1/files", headers={**key, **border, "content-length": str(1 << 40)})
    assert told.getresponse().status == 413
    told.close()
    for query in ("?limit=0", "?limit=x", "?order=up", "?colour=red", "?limit=1&limit=2", "?%ff"):
        assert httpx.get(url + query, headers=key).status_code == 400, query
    assert httpx.get(url + "?after=nothing", headers=key).status_code == 404
    incomplete = {"input_file_id": "x"}
    assert httpx.post(f"{gateways.url}/v1/batches", json=incomplete, headers=key).status_code == 400


def test_killed_in_the_middle_every_line_is_answered_once(own):
    client = own.start()
    count = 100
    batch = begin(client, lines_of(count, itl_ms=150))
    until(client, batch, lambda batch: own.num_asked() > 2 * own.num_slots)
    own.kill()
    asked_before = own.num_asked()
    assert asked_before < count, "killed too late to show anything"
    own.start()
    client = own.client(client.api_key)
    done = until(client, batch)
    assert done.status == "completed"
    assert done.request_counts.model_dump() == {"total": count, "completed": count, "failed": 0}
    answered = Counter(one["custom_id"] for one in records(client, done.output_file_id))
    assert answered == Counter(f"q-{number}" for number in range(count))
    assert own.num_asked() <= count + own.num_slots, "only those that were at the worker are asked again"


def test_of_two_gateways_one_runs_a_batch(own):
    first = own.start()
    key = first.api_key
    own.start()
    second = own.client(key)
    batches = [begin(client, lines_of(20, itl_ms=10)) for client in (first, second, first)]
    for batch in batches:
        assert until(second, batch).request_counts.completed == 20
    assert own.num_asked() == 60, "no line was asked twice"


def test_users_go_first(tmp_path):
    gateways = Gateways(tmp_path, num_slots=2)
    try:
        client = gateways.start()
        batch = begin(client, lines_of(4, fault="hang"))
        until(client, batch, lambda batch: gateways.num_asked() == 1)
        with ThreadPoolExecutor(1) as pool:  # a place stayed free for it, and nobody waits before it
            user = pool.submit(client.chat.completions.create, **chat(stream=False, chunks=2))
            assert user.result(20).choices[0].message.content == " w0 w1"
        metrics = httpx.get(f"{gateways.url}/metrics", headers={"authorization": f"Bearer {KEYS[0]}"}).text
        assert 'qserve_gateway_requests_waiting{worker="chat"} 0.0' in metrics, "the others wait outside of the queue"
        assert client.batches.cancel(batch.id).status == "cancelling"
        done = until(client, batch)
        assert (done.status, done.request_counts.failed) == ("cancelled", 4)
        assert {one["error"]["code"] for one in records(client, done.error_file_id)} == {"batch_cancelled"}
    finally:
        gateways.end()


def test_what_is_late_is_not_asked(gateways, client):
    asked_before = gateways.num_asked()
    batch = begin(client, lines_of(3, fault="hang"))
    until(client, batch, lambda batch: gateways.num_asked() > asked_before)
    with sqlite3.connect(gateways.folder / "files" / "files.sqlite3", timeout=30) as database:
        database.execute("UPDATE batch SET expires_at = 1 WHERE id = ?", (batch.id,))
    database.close()
    done = until(client, batch)
    assert (done.status, done.request_counts.failed) == ("expired", 3)
    assert {one["error"]["code"] for one in records(client, done.error_file_id)} == {"batch_expired"}


def test_the_command(gateways, tmp_path):
    questions = tmp_path / "questions.jsonl"
    questions.write_bytes(lines_of(12))
    qserve = (str(Path(sys.executable).with_name("qserve")), "batch", "--url", gateways.url, "--api-key", KEYS[0])

    def said(*arguments, status):
        done = subprocess.run([*qserve, *arguments], capture_output=True, text=True, timeout=LIMIT_S, check=False)
        assert done.returncode == status, done.stdout + done.stderr
        return done.stdout, done.stderr

    output, told = said(str(questions), "--json", status=0)
    assert "completed: 12 of 12 requests answered" in told
    document = json.loads(output)
    assert (document["status"], document["num_completed"], document["num_failed"]) == ("completed", 12, 0)
    assert document["output_file"] == str(tmp_path / "questions.results.jsonl")
    results = (tmp_path / "questions.results.jsonl").read_text().splitlines()
    assert [json.loads(line)["custom_id"] for line in results] == [f"q-{number}" for number in range(12)]
    batch_id = said(str(questions), "--no-wait", status=0)[0].strip()
    said("--resume", batch_id, "--output", str(tmp_path / "again.jsonl"), status=0)
    assert len((tmp_path / "again.jsonl").read_text().splitlines()) == 12
    questions.write_bytes(lines_of(1) * 2)
    assert "line 2: the custom_id 'q-0'" in said(str(questions), status=2)[1]
    questions.write_bytes(b"x")
    assert "line 1 is not valid JSON" in said(str(questions), status=2)[1]
