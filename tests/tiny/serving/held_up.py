"""A proxy that lets some requests through and holds the next ones up: something to interrupt, at a sure place."""

from __future__ import annotations

import http.server
import threading
import urllib.error
import urllib.request


class HeldUp:
    """In front of `url`: GETs pass, and the first `num_passing` POSTs. The others wait until the end."""

    def __init__(self, url: str, num_passing: int) -> None:
        self.num_posts = 0
        self.num_held = 0
        self._over = threading.Event()
        counting = threading.Lock()
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._pass(None)

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                with counting:
                    is_passing = outer.num_posts < num_passing
                    outer.num_posts += is_passing
                    outer.num_held += not is_passing
                if is_passing:
                    self._pass(body)
                else:
                    outer._over.wait()

            def _pass(self, body: bytes | None) -> None:
                request = urllib.request.Request(f"{url}{self.path}", body, {"content-type": "application/json"})
                try:
                    with urllib.request.urlopen(request, timeout=300) as reply:
                        status, answer = reply.status, reply.read()
                except urllib.error.HTTPError as error:
                    status, answer = error.code, error.read()
                    error.close()
                self.send_response(status)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_: object) -> None:
                """Says nothing."""

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = False  # server_close() waits for them
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()

    def close(self) -> None:
        self._over.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
