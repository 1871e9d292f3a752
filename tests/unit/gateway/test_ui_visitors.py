"""A visitor of the UI reaches its own streams and files, and nobody else's."""

from __future__ import annotations

import json

import pytest

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
