"""An upload whose length nobody knows is refused in its middle, before what it writes is more than may be kept."""

from __future__ import annotations

import pytest

from qserve.batches import FileBounds
from qserve.gateway.batches.endpoints import BatchEndpoints
from qserve.gateway.settings import GatewaySettings
from qserve.wire.errors import ApiError

CHUNK = 64 * 1024
FORM = (
    b'--b\r\ncontent-disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
    b'--b\r\ncontent-disposition: form-data; name="file"; filename="a.jsonl"\r\n\r\n'
)
SCOPE = {
    "type": "http",
    "method": "POST",
    "path": "/v1/files",
    "client": ("127.0.0.1", 1),
    "state": {},
    "headers": [(b"host", b"localhost"), (b"content-type", b"multipart/form-data; boundary=b")],
}


async def test_an_upload_is_refused_in_its_middle(tmp_path):
    bounds = FileBounds(max_total_bytes=10 * CHUNK)
    endpoints = BatchEndpoints(tmp_path, bounds, None, GatewaySettings())
    largest = num_sent = 0

    async def receive():
        nonlocal largest, num_sent
        num_sent += 1
        largest = max(largest, *(path.stat().st_size for path in (tmp_path / "incoming").iterdir()))
        return {"type": "http.request", "body": FORM if num_sent == 1 else b"x" * CHUNK, "more_body": num_sent < 100}

    async def send(message):
        raise AssertionError(message)

    with pytest.raises(ApiError) as refused:
        await endpoints.upload(SCOPE, receive, send)
    assert (refused.value.status, refused.value.code) == (400, "storage_full")
    assert num_sent < 15 and largest <= bounds.max_total_bytes
    assert not list((tmp_path / "incoming").iterdir())
