"""A gateway that serves does not walk what it has imported at each full collection."""

from __future__ import annotations

import socket
import subprocess
import sys

from qserve.gateway.http import server as served

_COUNTED = """
import gc, qserve.gateway.app
from qserve.gateway.http.server import freeze_heap
before = len(gc.get_objects())
freeze_heap()
print(before, len(gc.get_objects()))
"""


def test_what_was_imported_is_not_looked_through_again() -> None:
    told = subprocess.run([sys.executable, "-c", _COUNTED], capture_output=True, text=True, timeout=60, check=True)
    before, after = map(int, told.stdout.split())
    assert after < before / 10


async def test_it_is_done_before_the_first_request(monkeypatch) -> None:
    seen = []

    class Server:
        async def serve(self, sockets: list[socket.socket]) -> None:
            seen.append("serves")

    monkeypatch.setattr(served, "freeze_heap", lambda: seen.append("frozen"))
    with socket.socket() as listener:
        await served.run_server(Server(), listener)
    assert seen == ["frozen", "serves"]
