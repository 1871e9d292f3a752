"""Whatever is sent to the routes of Gradio's queue: an answer of JSON with a 4xx, and no traceback in the log."""

from __future__ import annotations

import asyncio
import json
import os

import httpx
import pytest

from qserve.charts.html import stylesheet
from qserve.gateway.web.routes import UI_ROUTES
from qserve.ui.process.visitors import Visitors
from qserve.ui.settings import UISettings

GOOD = {"session_hash": "s1", "data": [], "fn_index": 0, "event_id": "e", "event_data": None, "trigger_id": 1}
NO_JSON = [b"", b"{", b"nul", b"\xff\xfe", b"[" * 100_000, b'{"session_hash": "s1", "data": [' + b"[" * 100_000]
NO_OBJECT = [b"[]", b'"x"', b"1", b"null", b"{}"]
WRONG = {
    "fn_index": [99_999, -1, 2**63, 10**40, 1.5, "a", "0", None, True, [], {}, float("nan"), float("inf")],
    "session_hash": [None, 7, "", [], "x" * 100_000, "\ud800", "a\nb", "a/b", "../x", "\x00"],
    "event_id": [7, [], {}, True],
}
WRONG_JOIN = {
    "trigger_id": ["a", 1.5, [], {}, float("nan")],
    "data": [None, "a", {}, 1, float("nan"), [float("nan")]],
    "event_data": [float("nan"), {"a": float("inf")}],
    "batched": [True, "a", 3],
    "simple_format": ["a", 3, None],
}
POSTS = ("/gradio_api/queue/join", "/gradio_api/cancel", "/gradio_api/reset")


def wrong_bodies(path):
    yield from NO_JSON + NO_OBJECT
    fields = {"event_id": WRONG["event_id"]} if path.endswith("reset") else WRONG
    for name, values in {**fields, **(WRONG_JOIN if path.endswith("join") else {})}.items():
        needed = not path.endswith("join") or name not in {"event_id", "trigger_id", "event_data", "batched"}
        if needed and name in GOOD:
            yield json.dumps({key: value for key, value in GOOD.items() if key != name}).encode()
        for value in values:
            yield json.dumps({**GOOD, name: value}).encode()


@pytest.fixture(scope="module")
def gradio(tmp_path_factory):
    """The real pages, with what stands before them."""
    files = tmp_path_factory.mktemp("files")
    before = os.environ.get("GRADIO_TEMP_DIR")
    os.environ["GRADIO_TEMP_DIR"] = str(files)
    from qserve.ui.process.app import build_app

    async def built():  # in a loop, as it is served: outside, each lock of Gradio makes a loop of its own and leaves it
        return Visitors(build_app(UISettings("http://127.0.0.1:9", api_key="")), files)

    yield asyncio.run(built())
    if before is None:
        del os.environ["GRADIO_TEMP_DIR"]
    else:
        os.environ["GRADIO_TEMP_DIR"] = before


@pytest.fixture
async def client(gradio):
    transport = httpx.ASGITransport(app=gradio)  # what the app raises, it raises here
    async with httpx.AsyncClient(
        transport=transport, base_url="http://127.0.0.1", headers={"x-qserve-visitor": "v"}, timeout=30
    ) as http:
        yield http


async def test_charts_have_their_stylesheet_from_the_head_and_none_from_gradio(client):
    """Its script drops the container queries of a stylesheet that it is given."""
    head = (await client.get("/")).text.partition("<head>")[2]
    assert head.startswith(f"<style>{stylesheet()}</style><script>")
    assert head.count("@container") == stylesheet().count("@container") == 2
    assert ".qs-tiles" in head, "the stylesheet that Gradio is given is in the page"


def test_every_route_that_takes_a_body_is_tried():
    assert {route.path for route in UI_ROUTES if route.method == "POST"} == {*POSTS, "/gradio_api/upload"}


@pytest.mark.parametrize("path", [*POSTS, "/gradio_api/upload"])
async def test_a_body_that_is_none_is_a_4xx(client, caplog, capfd, path):
    for body in wrong_bodies(path):
        answer = await client.post(path, content=body, headers={"content-type": "application/json"})
        assert 400 <= answer.status_code < 500, (body[:100], answer.text[:200])
        assert "json" in answer.headers["content-type"]
        assert answer.json().keys() <= {"error", "detail"} and len(answer.content) < 2000
    assert not caplog.records and "Traceback" not in "".join(capfd.readouterr())


async def test_a_right_call_goes_on_and_too_few_values_are_refused(gradio, client):
    blocks = gradio._app._app._app._blocks
    number, function = next((number, one) for number, one in blocks.fns.items() if len(one.inputs) > 1)
    call = {**GOOD, "fn_index": number, "data": [None] * len(function.inputs)}
    assert (await client.post(POSTS[0], json=call)).json().keys() == {"event_id"}
    refused = await client.post(POSTS[0], json={**call, "data": [None]})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "data")
    refused = await client.post(POSTS[0], json={**call, "fn_index": 99_999})
    assert "this page has no such function; load it again" in refused.json()["error"]["message"]


@pytest.mark.parametrize(
    ("query", "status"),
    [("", 400), ("?session_hash=", 400), ("?session_hash=a&session_hash=b", 400), ("?session_hash=unknown", 200)],
)
async def test_a_stream_of_no_session_ends_without_a_traceback(client, caplog, capfd, query, status):
    answer = await client.get(f"/gradio_api/queue/data{query}")
    assert answer.status_code == status
    if status == 200:
        event = json.loads(answer.text.removeprefix("data: "))
        assert (event["msg"], event["session_not_found"]) == ("unexpected_error", True)
    assert not caplog.records and "Traceback" not in "".join(capfd.readouterr())
