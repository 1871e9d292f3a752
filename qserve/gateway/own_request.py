"""A request that the service makes of its own app: a line of a batch, a response in the background."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.types import Scope

__all__ = ["own_request"]


def own_request(path: str, num_bytes: int, headers: Sequence[tuple[bytes, bytes]], address: str = "") -> Scope:
    """The scope of a POST with a JSON body of `num_bytes`; `address`: of the client that it is for."""
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "client": (address, 0) if address else None,
        "server": None,
        "headers": [(b"content-type", b"application/json"), (b"content-length", b"%d" % num_bytes), *headers],
    }
