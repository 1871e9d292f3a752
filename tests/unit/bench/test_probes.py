"""What a command asks only to test a server says so, and its load does not: a qserve counts the two apart."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from qserve.bench.client import LoadClient
from qserve.bench.connection import Address
from qserve.bench.endpoints import ENDPOINTS, Endpoint, Prompt
from qserve.bench.records import RequestRecord
from qserve.bench.target import first_request
from qserve.errors import UsageError
from qserve.evaluation import preflight, preview
from qserve.evaluation.server import ServedModel, post_json


class _Server(BaseHTTPRequestHandler):
    """Refuses everything, and notes which requests are probes."""

    probes: list[bool]
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.probes.append(self.headers.get("x-qserve-probe") == "1")
        body = json.dumps({"error": {"message": "too long"}}).encode()
        self.send_response(400)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, list[bool]]]:
    """Its address, and what was asked: whether each was a probe."""
    probes: list[bool] = []
    monkeypatch.setattr(_Server, "probes", probes, raising=False)
    served = ThreadingHTTPServer(("127.0.0.1", 0), _Server)
    thread = threading.Thread(target=served.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{served.server_port}", probes
    served.shutdown()
    thread.join()
    served.server_close()


async def test_a_load_is_no_probe_and_the_request_before_it_is(server: tuple[str, list[bool]]) -> None:
    url, probes = server
    client = LoadClient(Address.of(url), Endpoint("chat", ENDPOINTS["chat"], "m"))
    with pytest.raises(UsageError, match="too long"):
        await first_request(client, iter(lambda: Prompt("one", 4), None))
    assert set(probes) == {True}
    probes.clear()
    await client.ask(RequestRecord(0, 0.0, 0.0), client.encoded(Prompt("one", 4)))
    client.close()
    assert probes == [False]


def test_the_checks_before_an_evaluation_are_probes(server: tuple[str, list[bool]]) -> None:
    url, probes = server
    served: Any = ServedModel(url, "", "m", 100, "", 1, {}, None)
    for check in (
        lambda: preflight._choice(served, {"prompt": "a"}),
        lambda: preview.check_budget(served, 8),
        lambda: preview.seen_thinking(served),
    ):
        with pytest.raises(UsageError):
            check()
    assert probes == [True, True, True]
    with pytest.raises(UsageError):
        post_json(f"{url}/v1/reward", "", {})
    assert probes[-1] is False
