"""A server on a free port whose answers the test writes."""

from __future__ import annotations

import contextlib
import http.server
import json
import threading
from collections.abc import Callable, Iterator
from typing import Any

Answer = Callable[[str, Any], tuple[int, Any]]
"""`answer(path, body)`: status, and a JSON value or raw text. `body` is None for GET."""


@contextlib.contextmanager
def answering(answer: Answer) -> Iterator[str]:
    """Its URL."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._say(*answer(self.path, None))

        def do_POST(self) -> None:
            self._say(*answer(self.path, json.loads(self.rfile.read(int(self.headers["content-length"])))))

        def _say(self, status: int, value: Any) -> None:
            data = (value if isinstance(value, str) else json.dumps(value)).encode()
            self.send_response(status)
            self.send_header("content-type", "text/plain" if isinstance(value, str) else "application/json")
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            """Says nothing."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = False  # server_close() waits for them
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
