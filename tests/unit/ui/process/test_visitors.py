"""A visitor of the UI reaches its own streams and files, and nobody else's."""

from __future__ import annotations

import asyncio
import json

import pytest

from qserve.ui.process import visitor_files, visitors
from qserve.ui.process.visitors import Visitors

JOIN = "/gradio_api/queue/join"


class Ui:
    """Visitors before an application that says what it is told to say, and where it was asked."""

    def __init__(self, files) -> None:
        self.files = files
        self.says = (b"application/json", b"{}")
        self.reached = []
        self.app = Visitors(self._answer, files)

    async def _answer(self, scope, receive, send):
        message = await receive()
        self.reached.append((scope["path"], message["body"], dict(scope["headers"])))
        kind, body = self.says
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", kind)]})
        await send({"type": "http.response.body", "body": body})

    async def ask(self, visitor, path, body=b"", method="GET", **headers):
        path, _, query = path.partition("?")
        given = {"x-qserve-visitor": visitor, **headers}
        pairs = [(name.replace("_", "-").encode(), value.encode()) for name, value in given.items() if value]
        scope = {"type": "http", "method": method, "path": path, "query_string": query.encode(), "headers": pairs}
        sent = []

        async def receive():
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message):
            sent.append(message)

        await self.app(scope, receive, send)
        return sent[0]["status"]

    async def join(self, visitor, session):
        return await self.ask(visitor, JOIN, json.dumps({"session_hash": session}).encode(), "POST")


@pytest.fixture
def ui(tmp_path):
    return Ui(tmp_path)


async def test_who_comes_past_the_gateway_is_refused_but_for_health(ui):
    assert await ui.ask("", "/") == 401
    assert await ui.ask("", "/health") == 200


async def test_a_session_belongs_to_the_first_who_names_it(ui):
    assert await ui.join("ann", "s1") == 200
    assert ui.reached[-1][1] == b'{"session_hash": "s1"}', "the body comes through whole"
    for path in ("/gradio_api/queue/data?session_hash=s1", "/gradio_api/heartbeat/s1"):
        assert await ui.ask("bob", path) == 403
        assert await ui.ask("ann", path) == 200
    assert await ui.join("bob", "s1") == 403
    assert await ui.ask("bob", "/gradio_api/cancel", b'{"session_hash": "s1"}', "POST") == 403
    assert await ui.ask("bob", "/gradio_api/queue/data?session_hash=s2&session_hash=s1") == 403


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"session_hash": null}', b'{"session_hash": 7}', b"{"])
async def test_a_request_without_a_session_is_refused(ui, body):
    assert await ui.ask("ann", JOIN, body, "POST") == 400
    assert not ui.reached


@pytest.mark.parametrize("kind", [b"text/event-stream", b"application/json", b"text/html; charset=utf-8"])
async def test_a_file_is_for_whom_its_path_was_told(ui, kind):
    made = ui.files / "sco red.jsonl"
    made.write_text("x")
    ui.says = (kind, b'data: {"output":{"path":%b}}\n\n' % json.dumps(str(made)).encode())
    assert await ui.ask("ann", f"/gradio_api/file={made}") == 403
    await ui.ask("ann", "/gradio_api/queue/data?session_hash=s1")
    assert await ui.ask("ann", f"/gradio_api/file={made}") == 200
    assert await ui.ask("bob", f"/gradio_api/file={made}") == 403


async def test_an_uploaded_file_is_the_uploaders(ui):
    ui.says = (b"application/json", json.dumps([str(ui.files / "a.csv")]).encode())
    await ui.ask("ann", "/gradio_api/upload", b"a,b", "POST")
    assert await ui.ask("ann", f"/gradio_api/file={ui.files / 'a.csv'}") == 200
    assert await ui.ask("bob", f"/gradio_api/file={ui.files / 'a.csv'}") == 403


@pytest.mark.parametrize("path", ["/etc/passwd", "https://evil.example/x", "{files}/../secret"])
async def test_no_path_outside_of_the_folder_is_open_whatever_was_told(ui, path):
    path = path.format(files=ui.files)
    ui.says = (b"application/json", json.dumps({"path": path}).encode())
    await ui.ask("ann", "/gradio_api/queue/data?session_hash=s1")
    assert await ui.ask("ann", f"/gradio_api/file={path}") == 403


async def test_what_a_model_writes_opens_nothing(ui):
    text = json.dumps({"path": str(ui.files / "other.jsonl")})
    ui.says = (b"text/event-stream", f"data: {json.dumps({'value': text})}\n\n".encode())
    await ui.ask("ann", "/gradio_api/queue/data?session_hash=s1")
    assert await ui.ask("ann", f"/gradio_api/file={ui.files / 'other.jsonl'}") == 403


async def test_answers_come_uncompressed_so_that_they_can_be_heard(ui):
    await ui.ask("ann", "/", accept_encoding="br")
    assert b"accept-encoding" not in ui.reached[-1][2]


async def test_an_error_of_the_ui_is_a_500_and_ends_no_connection(ui):
    """What is raised after a whole answer would close the connection that the next visitor is given."""

    async def fails(scope, receive, send):
        raise OSError("File name too long")

    async def fails_after_its_answer(scope, receive, send):
        await send({"type": "http.response.start", "status": 500, "headers": []})
        await send({"type": "http.response.body", "body": b"failed"})
        raise OSError("File name too long")

    for failing in (fails, fails_after_its_answer):
        ui.app = Visitors(failing, ui.files)
        assert await ui.ask("a", "/assets/x") == 500


async def test_an_answer_that_breaks_off_breaks_the_connection(ui):
    async def breaks(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"half", "more_body": True})
        raise OSError("gone")

    ui.app = Visitors(breaks, ui.files)
    with pytest.raises(OSError, match="gone"):
        await ui.ask("a", "/assets/x")


UPLOAD = "/gradio_api/upload"


async def upload(ui, visitor, name, num_bytes=10):
    """As Gradio does: the file lies in a folder of its own when the answer names it."""
    file = ui.files / f"hash-of-{name}" / name
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(b"x" * num_bytes)
    ui.says = (b"application/json", json.dumps([str(file)]).encode())
    status = await ui.ask(visitor, UPLOAD, b"x" * num_bytes, "POST", content_length=str(num_bytes))
    return status, file


async def test_who_signs_out_leaves_no_file_and_takes_nobody_elses(ui):
    _, own = await upload(ui, "ann", "a.csv")
    _, shared = await upload(ui, "ann", "b.csv")
    await upload(ui, "bob", "b.csv")
    assert await ui.ask("ann", "/sign-out", method="POST") == 204
    assert not own.exists() and not own.parent.exists() and shared.exists()
    assert await ui.ask("ann", f"/gradio_api/file={shared}") == 403
    assert await ui.ask("bob", f"/gradio_api/file={shared}") == 200


async def test_who_leaves_leaves_no_file_but_an_open_page_keeps_them(ui, monkeypatch):
    monkeypatch.setattr(visitors, "_LEFT_S", 0.05)
    closed = asyncio.Event()
    answer = ui.app._app

    async def waits(scope, receive, send):
        await (closed.wait() if "heartbeat" in scope["path"] else asyncio.sleep(0))
        await answer(scope, receive, send)

    ui.app._app = waits
    page = asyncio.create_task(ui.ask("ann", "/gradio_api/heartbeat/s1"))
    _, file = await upload(ui, "ann", "a.csv")
    await asyncio.sleep(0.3)
    assert file.exists()
    closed.set()
    await page
    await asyncio.sleep(0.3)
    assert not file.exists()


async def test_a_session_that_ends_leaves_no_file(ui, monkeypatch):
    monkeypatch.setattr(visitors, "SESSION_S", 0.1)
    _, file = await upload(ui, "ann", "a.csv")
    await asyncio.sleep(0.4)
    assert not file.exists()


async def test_a_visitors_oldest_files_go_first(ui, monkeypatch):
    monkeypatch.setattr(visitor_files, "_MOST_BYTES", 3 * 4096)
    files = [(await upload(ui, "ann", f"{number}.csv"))[1] for number in range(5)]
    assert [file.exists() for file in files] == [False, False, True, True, True]
    status, _ = await upload(ui, "ann", "large.csv", 4 * 4096)
    assert status == 413
    monkeypatch.setattr(visitor_files, "_MOST_FILES", 2)
    await upload(ui, "ann", "last.csv")
    assert sum(file.exists() for file in files) == 1


async def test_files_of_all_visitors_are_bounded_and_uploads_that_come_count(ui, monkeypatch):
    monkeypatch.setattr(visitor_files, "_MOST_BYTES_OF_ALL", 4 * 4096)
    answer, others = ui.app._app, []

    async def meanwhile(scope, receive, send):
        if not others:
            others.append(None)
            others[0] = await ui.ask("bob", UPLOAD, b"x", "POST", content_length=str(3 * 4096))
        await answer(scope, receive, send)

    ui.app._app = meanwhile
    status, _ = await upload(ui, "ann", "a.csv", 2 * 4096)
    assert (status, others) == (200, [507])
    assert (await upload(ui, "bob", "b.csv", 2 * 4096))[0] == 200
    assert (await upload(ui, "cem", "c.csv", 1))[0] == 507
    await ui.ask("bob", "/sign-out", method="POST")
    assert (await upload(ui, "cem", "c.csv", 1))[0] == 200
