"""A body is JSON in UTF-8, or a form: what else clients send is named, on every route that reads one."""

from __future__ import annotations

import codecs
import gzip
import json
import zlib

import pytest

from qserve.gateway.routes import ROUTES, RelayedRoute, dialect_of
from qserve.wire.errors import Dialect

CHAT = "/v1/chat/completions"
JSON = {"content-type": "application/json"}
READS_A_BODY = [
    route
    for route in ROUTES
    if route.method == "POST" and "{" not in route.path
    if isinstance(route, RelayedRoute) or "qserve" not in route.path
]
NOT_UTF8 = {
    "UTF-16 text": (lambda text: text.encode("utf-16"), lambda text: text.encode("utf-16-be")),
    "UTF-32 text": (lambda text: text.encode("utf-32"), lambda text: text.encode("utf-32-le")),
    "gzip data": (lambda text: gzip.compress(text.encode()),),
    "zlib data": (lambda text: zlib.compress(text.encode()),),
    "zstd data": (lambda text: b"\x28\xb5\x2f\xfd" + text.encode(),),
    "a zip archive": (lambda text: b"PK\x03\x04" + text.encode(),),
    "empty": (lambda text: b"", lambda text: b" \n\t "),
}


def _message(body: dict, path: str) -> str:
    return body["error"] if dialect_of(path) is Dialect.TEI else body["error"]["message"]


@pytest.mark.parametrize("encoding", ["gzip", "br", "zstd", "deflate", "gzip, identity", "colour"])
async def test_a_compressed_body_is_415_on_every_route(running, encoding):
    async with running() as stack:
        for route in READS_A_BODY:
            kind = JSON if route.path != "/v1/files" else {"content-type": "multipart/form-data; boundary=x"}
            headers = {**kind, "content-encoding": encoding}
            async with stack.http.post(stack.url + route.path, data=b"x" * 100, headers=headers) as response:
                said = _message(await response.json(), route.path)
                assert (route.path, response.status) == (route.path, 415)
                assert encoding in said and "identity" in said and response.headers["accept-encoding"] == "identity"


@pytest.mark.parametrize("encoding", ["identity", "IDENTITY", ""])
async def test_a_body_that_is_said_to_be_plain_is_taken(running, request_chat, encoding):
    async with running() as stack:
        headers = {**JSON, "content-encoding": encoding}
        async with stack.http.post(stack.url + CHAT, json=request_chat(chunks=1), headers=headers) as response:
            assert response.status == 200


@pytest.mark.parametrize("size", [0, 200_000], ids=["small", "large"])
async def test_a_byte_order_mark_is_left_out(running, request_chat, size):
    async with running() as stack:
        text = json.dumps({**request_chat(chunks=1, stream=False), "user": "u" * size}).encode()
        async with stack.http.post(stack.url + CHAT, data=codecs.BOM_UTF8 + text, headers=JSON) as response:
            assert response.status == 200, await response.text()


@pytest.mark.parametrize("kind", NOT_UTF8)
@pytest.mark.parametrize("size", [0, 200_000], ids=["small", "large"])
async def test_what_is_no_text_in_utf8_is_named(running, request_chat, kind, size):
    async with running() as stack:
        text = json.dumps({**request_chat(chunks=1), "user": "u" * size})
        for written in NOT_UTF8[kind]:
            for path in (CHAT, "/v1/messages", "/v1/responses/input_tokens", "/tokenize", "/v1/batches"):
                async with stack.http.post(stack.url + path, data=written(text), headers=JSON) as response:
                    assert response.status == 400
                    assert f"the body is {kind};" in _message(await response.json(), path)
