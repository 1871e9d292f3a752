"""Waiting for /ready: until it says yes, as long as somebody answers."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from qserve.deploy.probe import wait_until_ready


@contextmanager
def answering(*statuses):
    """(url, keys seen) of a server that gives one status after the other, the last one for ever."""
    left, seen = list(statuses), []

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self):
            seen.append((self.path, self.headers["Authorization"]))
            self.send_response(left.pop(0) if len(left) > 1 else left[0])
            self.end_headers()

        def log_message(self, *_):
            pass

    with HTTPServer(("127.0.0.1", 0), Answer) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", seen
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize(("statuses", "is_ready"), [((503, 503, 200), True), ((401,), False)])
def test_it_ends_with_the_answer(tmp_path, statuses, is_ready):
    keys = tmp_path / "keys"
    keys.write_text("# of the service\n\nfirst\nsecond\n")
    with answering(*statuses) as (url, seen):
        assert wait_until_ready(url, keys, pause_s=0.01) is is_ready
    assert seen == [("/ready", "Bearer first")] * len(statuses)


def test_a_service_that_is_gone_is_not_waited_for():
    with answering(200) as (url, _):
        pass
    assert not wait_until_ready(url, None, nobody_s=0.1, pause_s=0.02)
